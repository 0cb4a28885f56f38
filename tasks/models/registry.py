"""The networks by name. Each enters itself where it is written; every module of this package is looked at."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from thistle.experiments.registry import Registry
from thistle.tasks.dataset import Shape

Dropout = Callable[[float], nn.Module]
"""A dropout layer by its rate: `model.dropout` may change the rate, or leave the layer out."""
Builder = Callable[[Shape, int, Dropout], nn.Module]
"""A network for inputs of this shape (images: channels, height, width; values in [0, 1]) and this many classes."""

_ANY_SHAPE: set[Builder] = set()


def any_shape(builder: Builder) -> Builder:
    """Say that a network takes other inputs than images, too."""
    _ANY_SHAPE.add(builder)
    return builder


def takes(name: str, shape: Shape) -> bool:
    """Whether the network of this name takes such inputs."""
    return len(shape) == 3 or MODELS[name] in _ANY_SHAPE


MODELS: Registry[Builder] = Registry("model", package="thistle.tasks.models", order=lambda name: (name != "auto", name))
