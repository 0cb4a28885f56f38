"""Generators are named, not shared."""

from __future__ import annotations

import random

import numpy as np
import torch

from thistle.experiments.randomness import numpy_rng, reseed_globals, seed_for, torch_rng


def test_the_name_alone_decides() -> None:
    assert seed_for(0, "a", 1) == seed_for(0, "a", 1)
    names = {seed_for(s, p, w) for s in (0, 1) for p in ("a", "b") for w in (1, 2)}
    assert len(names) == 8
    assert min(names) >= 0 and max(names) < 2**63
    assert torch.equal(torch.rand(3, generator=torch_rng(0, "x")), torch.rand(3, generator=torch_rng(0, "x")))
    assert numpy_rng(0, "x").random() == numpy_rng(0, "x").random()


def test_the_values_are_pinned() -> None:
    """A change here changes every published run."""
    assert seed_for(0, "batches", 1, 2) == 772108500725406446


def test_library_generators_are_reseeded() -> None:
    draws = []
    for _ in range(2):
        reseed_globals(3, "server", 7)
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert draws[0] == draws[1]
