"""One of two values, by a condition, for many columns at once.

torch.where looks at one value after the other; three operations on the values' bits are several times faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""As long as these floats."""


def take(into: Tensor, other: Tensor, wanted: Tensor, scratch: Tensor) -> None:
    """Overwrite `into` with `other` where `wanted` is 1; it is 0 or 1, and of the floats' own integer type.

    `scratch` is of that type and size too.
    """
    kind = wanted.dtype
    bits = into.view(kind)
    torch.bitwise_xor(bits, other.view(kind), out=scratch)
    bits.bitwise_xor_(scratch.mul_(wanted))
