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


@torch.inference_mode()
def backdoor_success(model: nn.Module, pixels: Tensor, labels: Tensor, target: int, batch_size: int) -> float:
    """The share of stamped images of other classes that the model takes for `target`; eval mode."""
    model.eval()
    others = pixels[labels != target]
    hits = sum(int((predict(model, stamp(chunk)).argmax(1) == target).sum()) for chunk in others.split(batch_size))
    return hits / max(1, len(others))
