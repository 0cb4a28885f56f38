"""A small VGG."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from thistle.tasks.dataset import Shape
from thistle.tasks.models.parts import finish
from thistle.tasks.models.registry import MODELS, Dropout


@MODELS.add("vgg8", paper="Simonyan & Zisserman 2015")
def vgg8(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """Five convolutions with batch norm (64 to 512 wide), a pool after each while there is something to pool."""

    def blocks() -> Iterator[nn.Module]:
        inputs, side = shape[0], min(shape[1:])
        for outputs in (64, 128, 256, 512, 512):
            yield from (nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
            if side >= 4:
                yield nn.MaxPool2d(2)
                side //= 2
            inputs = outputs
        yield nn.AdaptiveAvgPool2d(1)

    return finish(list(blocks()), shape, lambda width: [dropout(0.5), nn.Linear(width, classes)])
