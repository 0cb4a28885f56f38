"""One client's reply after it was checked: plain numbers and arrays, and nothing else of the sender's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Number = int | float | list[int] | list[float]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a strategy may know of a client's work in a round."""

    client: int
    numbers: dict[str, Number]
    """Its metrics, `num-examples` among them."""
    arrays: dict[str, np.ndarray]
    """Its model, in the model's own order: views of the bytes that came, read only. Only its buffers, where the updates
    are kept instead."""
