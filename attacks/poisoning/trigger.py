"""The triggers of backdoors, and how often they work: the attacker stamps images, the server measures the damage.

Each is a mask m and a pattern p, c×h×w: a stamped image is (1 − m) x + m p.

- `patch`: a white square of 3×3 pixels in the lower right corner;
- `blend`: noise over the whole image, drawn from the seed, with m = 0.2 everywhere (Chen et al. 2017);
- `distributed`: four white bars in the upper left corner (Xie et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from thistle.experiments.randomness import torch_rng
from thistle.tasks.dataset import Shape
from thistle.tasks.models import predict

TriggerName = Literal["patch", "blend", "distributed"]
SIDE = 3
BLEND = 0.2
"""Chen et al.'s α, as backdoor benchmarks commonly set it."""


@dataclass(frozen=True, eq=False)
class Trigger:
    """What makes an image mean the attacker's class."""

    mask: Tensor
    """How much of each pixel is the pattern's."""
    pattern: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        """These images (n × c × h × w, in [0, 1]), stamped."""
        return pixels.clone().lerp_(self.pattern.to(pixels.device), self.mask.to(pixels.device))

    @property
    def places(self) -> Tensor:
        """The pixels that it changes, line by line."""
        return self.mask[0].flatten().nonzero().flatten()

    def part(self, number: int, count: int) -> Trigger:
        """One of its `count` parts: its pixels, line by line, in pieces of nearly equal size."""
        kept = torch.zeros_like(self.mask[0]).flatten()
        kept[self.places.tensor_split(count)[number]] = 1.0
        return Trigger(self.mask * kept.reshape(self.mask.shape[1:]), self.pattern)


def shape_of(pixels: Tensor) -> Shape:
    """Of one of these images."""
    return tuple(pixels.shape[1:])


@lru_cache(maxsize=8)
def make_trigger(name: str, shape: Shape, seed: int) -> Trigger:
    """The trigger of this name for images of this shape."""
    if name == "blend":
        noise = torch.rand(shape, generator=torch_rng(seed, "trigger"))
        return Trigger(torch.full(shape, BLEND), noise)
    return Trigger(_corner(shape, SIDE) if name == "patch" else _bars(shape), torch.ones(shape))


def square(shape: Shape, side: int, value: float) -> Trigger:
    """A square in the lower right corner, all of one brightness."""
    return Trigger(_corner(shape, side), torch.full(shape, value))


def _corner(shape: Shape, side: int) -> Tensor:
    mask = torch.zeros(shape)
    mask[:, -side:, -side:] = 1.0
    return mask


def _bars(shape: Shape) -> Tensor:
    """Two above two, with half a bar between them: at 28×28 four pixels each, as in the paper."""
    mask = torch.zeros(shape)
    length = max(2, shape[2] // 7)
    gap = length // 2
    for row in (0, 1 + gap):
        for column in (0, length + gap):
            mask[:, row, column : column + length] = 1.0
    return mask


@torch.inference_mode()
def share_taken_for(model: nn.Module, pixels: Tensor, target: int, batch_size: int) -> float:
    """The share of these images that the model takes for `target`; eval mode."""
    model.eval()
    hits = sum(int((predict(model, chunk).argmax(1) == target).sum()) for chunk in pixels.split(batch_size))
    return hits / max(1, len(pixels))
