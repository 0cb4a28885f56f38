"""The networks by name. Each enters itself where it is written; every module of this package is looked at."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from thistle.experiments.registry import Registry

Shape = tuple[int, int, int]
"""Channels, height, width."""
Dropout = Callable[[float], nn.Module]
"""A dropout layer by its rate: `model.dropout` may change the rate, or leave the layer out."""
Builder = Callable[[Shape, int, Dropout], nn.Module]
"""A network for images of this shape with values in [0, 1], and for so many classes."""

MODELS: Registry[Builder] = Registry("model", package="thistle.tasks.models", order=lambda name: (name != "auto", name))
