"""Networks that a task's images do not fit are refused in one line."""

from __future__ import annotations

import pytest

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.tasks.models import build_model


@pytest.mark.parametrize(("name", "shape"), [("auto", (1, 1, 20)), ("cnn-cifar", (3, 3, 3))])
def test_images_that_are_too_small(name: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match=f"images of {shape[1]}×{shape[2]} are too small for it; try mlp"):
        build_model(settings.Model(name=name), shape, 10, seed=0)


def test_the_dense_network_takes_any() -> None:
    assert build_model(settings.Model(name="mlp"), (1, 1, 20), 10, seed=0)
