"""Becomes `tasks/models/echo.py` of a staged app: one array, 25 000 floats for 50×50 grey images of 10 classes."""

from __future__ import annotations

from torch import nn

from thistle.tasks.models.registry import MODELS, Dropout, Shape


@MODELS.add("echo")
def echo(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """One linear layer without bias."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes, bias=False))
