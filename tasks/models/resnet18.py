"""ResNet-18 for small images."""

from __future__ import annotations

from torch import nn

from thistle.tasks.dataset import Shape
from thistle.tasks.models.registry import MODELS, Dropout


@MODELS.add("resnet18", paper="He et al. 2016")
def resnet18(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """torchvision's ResNet-18, fitted to small images: a 3×3 first convolution, no first pool."""
    from thistle.tasks.sources.vision import torchvision

    model: nn.Module = torchvision().models.resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model
