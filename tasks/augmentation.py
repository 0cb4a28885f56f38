"""Random crops and mirror images of a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4


def crop_and_flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Each image cut, at its own place, out of itself with 4 black pixels around; every second one mirrored."""
    count, _, height, width = pixels.shape
    padded = pad(pixels, (PADDING,) * 4)
    top, left = torch.randint(2 * PADDING + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.where(mirrored[:, None], torch.arange(width).flip(0), torch.arange(width))
    device = pixels.device
    images = torch.arange(count, device=device)[:, None, None]
    cut = padded.permute(0, 2, 3, 1)[images, rows.to(device)[:, :, None], columns.to(device)[:, None, :]]
    return cut.permute(0, 3, 1, 2)  # channels last, as it came
