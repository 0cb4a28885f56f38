"""What a task's data is, once decoded: uint8 images, labels, and class names in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Images:
    """Labelled images: pixels uint8 of shape n×c×h×w (often memory-mapped, never written to), labels int64."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.pixels.shape[1], self.pixels.shape[2], self.pixels.shape[3]

    def take(self, indices: np.ndarray) -> Images:
        """These images only, in this order."""
        return Images(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """A task's two sets. Class i is called `classes[i]` for everybody in the federation."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
