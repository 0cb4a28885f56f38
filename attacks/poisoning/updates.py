"""Attacks on a client's own update u: each returns what is sent instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

UpdateAttack = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class SignFlip:
    """−ν u."""

    nu: float

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        return -self.nu * own


@dataclass(frozen=True)
class Scale:
    """ν u. After an attack on the data, its boost."""

    nu: float

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        return self.nu * own


@dataclass(frozen=True)
class Gaussian:
    """s‖u‖ · g/‖g‖ with g ~ N(0, I)."""

    s: float

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        g = torch.randn(own.shape, generator=generator)
        return self.s * own.norm() / g.norm() * g


@dataclass(frozen=True)
class Zero:
    """Nothing."""

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros_like(own)
