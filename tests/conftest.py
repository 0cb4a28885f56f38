"""No test touches the user's cache or uses what Flower calls deprecated; THISTLE_TEST_DATA says where real data is."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy and torch are first imported
os.environ.setdefault("RAY_worker_niceness", "0")  # on a busy machine workers of lower priority would hardly run

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from thistle.tasks import freed_memory

freed_memory.keep_freed_memory = lambda: None  # for the next round of one run; here thousands of runs follow each other
settings.register_profile("thistle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thistle")  # how long an example takes is the machine's business, not the code's


MUCH = 300_000
"""Frozen objects: some hundred runs' worth."""
_frozen = [0]


def pytest_collection_finish() -> None:
    """Flower collects garbage at every reply: let it look at what is new, not at all that the tests have imported."""
    _freeze()


@pytest.fixture(scope="module", autouse=True)
def _garbage_goes() -> Iterator[None]:
    """A run freezes what it finds, so that what others left behind would stay for ever."""
    yield
    if gc.get_freeze_count() > _frozen[0] + MUCH:
        _freeze()


def _freeze() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _frozen[0] = gc.get_freeze_count()


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for all tests that do not care."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("THISTLE_CACHE", str(folder))
        yield folder


class Deprecated(logging.Handler):
    """Flower logs what others warn of."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "DEPRECATED FEATURE" in text or "is deprecated" in text:
            raise DeprecationWarning(text)


@pytest.fixture(scope="session", autouse=True)
def _nothing_deprecated() -> Iterator[None]:
    """In this process; the logger is Flower's own."""
    handler, logger = Deprecated(logging.WARNING), logging.getLogger("flwr")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


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
