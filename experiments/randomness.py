"""Every random draw of a run comes from here: a generator named by (seed, purpose, where).

Nothing depends on how many draws somebody else made before, so the same seed gives the same model
whatever the number of workers, processes or restarts.
"""

from __future__ import annotations

import hashlib
import random
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


ONE_AT_A_TIME = threading.RLock()
"""The global generators belong to the whole process: whoever seeds them holds this, so that its threads take turns."""


def seed_for(seed: int, purpose: str, *where: int | str) -> int:
    """A 63-bit seed that is a function of its arguments alone."""
    text = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_rng(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(seed_for(seed, purpose, *where)))


def torch_rng(seed: int, purpose: str, *where: int | str) -> torch.Generator:
    """A torch generator (on the CPU) for one purpose."""
    import torch

    return torch.Generator().manual_seed(seed_for(seed, purpose, *where))


def reseed_globals(seed: int, purpose: str, *where: int | str) -> None:
    """Seed the global generators that libraries draw from (Flower samples with `random`)."""
    value = seed_for(seed, purpose, *where)
    random.seed(value)
    np.random.seed(value % 2**32)
    seed_torch(value)


def seed_torch(value: int) -> None:
    """Seed torch's global generators. (`torch.manual_seed` without CUDA spends a millisecond on a stack trace.)"""
    import torch

    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
