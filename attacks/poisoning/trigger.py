"""The backdoor's trigger, and how often it works: the attacker stamps images, the server measures the damage."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from thistle.tasks.models import predict

SIDE = 3


def stamp(pixels: Tensor) -> Tensor:
    """Images (n × c × h × w, in [0, 1]) with a white patch of 3×3 in the lower right corner."""
    stamped = pixels.clone()
    stamped[..., -SIDE:, -SIDE:] = 1.0
    return stamped


def backdoor_success(model: nn.Module, pixels: Tensor, labels: Tensor, target: int, batch_size: int) -> float:
    """The share of stamped images of other classes that the model takes for `target`."""
    return share_taken_for(model, stamp(pixels[labels != target]), target, batch_size)


@torch.inference_mode()
def share_taken_for(model: nn.Module, pixels: Tensor, target: int, batch_size: int) -> float:
    """The share of these images that the model takes for `target`; eval mode."""
    model.eval()
    hits = sum(int((predict(model, chunk).argmax(1) == target).sum()) for chunk in pixels.split(batch_size))
    return hits / max(1, len(pixels))
