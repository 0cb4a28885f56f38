"""What Flower, Ray or torch will remove is an error in our tests, before it is removed."""

from __future__ import annotations

import warnings

import pytest
from flwr.supercore.logger import warn_deprecated_feature


def test_what_flower_logs_as_deprecated_is_an_error() -> None:
    with pytest.raises(DeprecationWarning, match="an old feature"):
        warn_deprecated_feature("an old feature")


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, PendingDeprecationWarning])
@pytest.mark.parametrize("module", ["flwr.app", "ray.actor", "torch.nn", "thistle.strategies.pipeline"])
def test_a_warning_is_an_error(category: type[Warning], module: str) -> None:
    with pytest.raises(category):
        warnings.warn_explicit("old", category, "file.py", 1, module=module)
