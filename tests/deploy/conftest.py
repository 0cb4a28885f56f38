"""One federation for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.secure import Secure, secure


@pytest.fixture(scope="package")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure(tmp_path_factory.mktemp("federation")) as made:
        yield made
