"""No test touches the user's cache; big data is used where THISTLE_TEST_DATA says it is."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy and torch are first imported

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for all tests that do not care."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("THISTLE_CACHE", str(folder))
        yield folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, still empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("THISTLE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with MNIST, CIFAR-10 and others."""
    if "THISTLE_TEST_DATA" not in os.environ:
        pytest.skip("THISTLE_TEST_DATA does not name a folder with real data")
    return Path(os.environ["THISTLE_TEST_DATA"])
