"""Pictures of more than eight bits a pixel: all of their levels are kept, as 16 bits.

Of 12 bits (`task.bits`) the largest value, 4095, becomes 65535: no two values become one, and white is 1 for the model.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from thistle.experiments.errors import UserError

SIXTEEN = ("I;16", "I;16L", "I;16B", "I;16N")
DEEPER = ("I", "F")
"""Their values have no agreed range."""
MOST = 65535


def is_deep(mode: str, form: str | None) -> bool:
    """Whether a picture of this mode and format has 16 bits; Pillow opens a deep PGM as 32 bits."""
    return mode in SIXTEEN or (mode, form) == ("I", "PPM")


def widened(values: np.ndarray, bits: int, where: str) -> np.ndarray:
    """Values with this many bits (8 to 16), as uint16 from black to white."""
    most = 2**bits - 1
    if values.size and int(values.max()) > most:
        raise UserError(f"{where} has values above {most}, the most that task.bits = {bits} allows; set task.bits")
    return values.astype(np.uint16) if bits == 16 else np.rint(values * (MOST / most)).astype(np.uint16)


def levels(image: Image.Image, bits: int, where: str) -> np.ndarray:
    """A deep picture's, h×w, as uint16."""
    return widened(np.asarray(image), 16 if image.format == "PPM" else bits, where)  # Pillow has scaled a PGM


def in_eight_bits(image: Image.Image, mode: str, bits: int = 16) -> Image.Image:
    """The picture as `mode` ("L" or "RGB")."""
    deep = is_deep(image.mode, image.format)
    if image.mode in DEEPER and not deep:
        raise ValueError("32 bits per pixel: save it with 8 or 16")
    if deep:
        image = Image.fromarray((levels(image, bits, "the image") >> 8).astype(np.uint8))
    return image.convert(mode)


def in_sixteen_bits(image: Image.Image, bits: int, where: str) -> np.ndarray:
    """A grey picture, h×w, as uint16, whatever its depth."""
    if is_deep(image.mode, image.format):
        return levels(image, bits, where)
    return np.asarray(in_eight_bits(image, "L")).astype(np.uint16) * 257
