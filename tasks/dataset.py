"""What a task's data is, once decoded: images or other values, labels, and class names in a fixed order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

Shape = tuple[int, ...]
"""Of one input: channels, height, width of an image; the columns of a table's row; whatever else values may have."""
Bounds = tuple[float, float]
"""The least and the greatest value that an input of a model may have."""
PIXELS: Bounds = (0.0, 1.0)
ANY: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True)
class Images:
    """Labelled inputs, images in most tasks: n×shape (often memory-mapped, never written to), labels int64.

    Integers are the levels of images, uint8 or uint16, and become [0, 1]; floats are what the model sees.
    """

    pixels: np.ndarray
    labels: np.ndarray
    bounds: Bounds = PIXELS
    """Of what the model sees: adversarial examples stay inside."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """Of one input."""
        return self.pixels.shape[1:]

    def take(self, indices: np.ndarray) -> Images:
        """These only, in this order."""
        return replace(self, pixels=self.pixels[indices], labels=self.labels[indices])


def joined(parts: list[Images]) -> Images:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    pixels, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("pixels", "labels"))
    return replace(parts[0], pixels=pixels, labels=labels)


@dataclass(frozen=True)
class Dataset:
    """A task's two sets. Class i is called `classes[i]` for everybody in the federation."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    scheme: str = ""
    """How rows of a table became these values (thistle.tasks.tables.scheme), as text; empty: they were no rows."""

    @property
    def shape(self) -> Shape:
        """Of one input; either set may be empty."""
        return (self.train if len(self.train) else self.test).shape
