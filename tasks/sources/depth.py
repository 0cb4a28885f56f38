"""Pictures of more than eight bits a pixel. Pillow would clip them: all but the darkest would be white."""

from __future__ import annotations

import numpy as np
from PIL import Image

SIXTEEN = ("I;16", "I;16L", "I;16B", "I;16N")
DEEPER = ("I", "F")
"""Their values have no agreed range."""


def in_eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """The picture as `mode` ("L" or "RGB")."""
    sixteen = image.mode in SIXTEEN or (image.mode, image.format) == ("I", "PPM")  # so Pillow opens a deep PGM
    if image.mode in DEEPER and not sixteen:
        raise ValueError("32 bits a pixel: save it with 8 or 16")
    if sixteen:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert(mode)
