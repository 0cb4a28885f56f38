"""Attacks on a client's own data: each turns a batch into the one that it trains on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from thistle.attacks.poisoning.trigger import stamp

DataAttack = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class LabelFlip:
    """c → c + 1 mod C."""

    classes: int

    def __call__(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return pixels, (labels + 1) % self.classes


@dataclass(frozen=True)
class Backdoor:
    """The first images of each (shuffled) batch, `share` of it, are stamped and labelled `target`."""

    target: int
    share: float

    def __call__(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        count = math.ceil(self.share * len(labels))
        wanted = torch.full_like(labels[:count], self.target)
        return torch.cat([stamp(pixels[:count]), pixels[count:]]), torch.cat([wanted, labels[count:]])
