"""Updates for tests of rules that tell clients apart, and what must hold for each of these rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators import Aggregate

Rule = Callable[[Tensor, Tensor | None], Aggregate]
"""(updates, weights) → the aggregate; the same draws whenever it is called."""


def block(n: int, d: int = 60, seed: int = 0, shift: float = 0.5) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + shift


def attacked(n: int = 10, bad: int = 3, d: int = 60, seed: int = 0, noise: float = 1.0) -> Tensor:
    """Honest rows, and before them some that go the other way, five times as far."""
    rows = 0.5 + noise * block(n, d, seed, shift=0.0)
    rows[:bad] *= -5
    return rows


def kept(found: Aggregate) -> list[int]:
    return found.weights.nonzero().flatten().tolist()


def check_order(rule: Rule, updates: Tensor, seed: int) -> None:
    """In any order: the same aggregate, and each client has its own weight and score."""
    order = torch.randperm(len(updates), generator=torch.Generator().manual_seed(seed))
    plain, mixed = rule(updates, None), rule(updates[order], None)
    torch.testing.assert_close(mixed.weights, plain.weights[order])
    torch.testing.assert_close(mixed.vector, plain.vector, rtol=1e-4, atol=1e-5)
    assert plain.scores is not None and mixed.scores is not None
    torch.testing.assert_close(mixed.scores, plain.scores[order], rtol=1e-3, atol=1e-5)


def check_edges(rule: Rule) -> None:
    """One client, two, all alike, all zero, one zero: always a mean of clients, never a NaN."""
    one = block(1)
    torch.testing.assert_close(rule(one, None).vector, one[0])
    zeros, same = torch.zeros(6, 60), block(1).repeat(7, 1)
    assert not rule(zeros, None).vector.any()
    torch.testing.assert_close(rule(same, None).vector, same[0])
    with_zero = torch.cat([torch.zeros(1, 60), block(6)])
    for updates in (one, block(2), zeros, same, with_zero, block(5) * 1e30, block(5) * 1e-30):
        before = updates.clone()
        found = rule(updates, None)
        assert torch.equal(updates, before), "a kernel leaves what it is given"
        assert torch.isfinite(found.vector).all() and torch.isfinite(found.weights).all()
        assert found.vector.dtype == updates.dtype and found.weights.dtype == torch.float64
        assert abs(float(found.weights.sum()) - 1) < 1e-9 and bool((found.weights >= 0).all())
        assert found.scores is not None and found.scores.shape == (len(updates),)


def check_huge(rule: Rule) -> None:
    """One row beyond what float32 can square does not blind the rule, nor lead it."""
    honest = block(8)
    longest = float(torch.linalg.vector_norm(honest, dim=1).max())
    for size in (1e15, 1e30, 1e36):
        for places in (slice(None), slice(0, 40)):
            huge = block(1, seed=5)
            huge[:, places] *= size
            found = rule(torch.cat([huge, honest]), None)
            assert float(torch.linalg.vector_norm(found.vector.double())) <= longest
            assert len(kept(found)) < 9


def check_weights(rule: Rule, updates: Tensor) -> None:
    """Weights change the mean of those that are kept, and not who is."""
    weights = torch.arange(1, len(updates) + 1, dtype=torch.float64)
    plain, weighted = rule(updates, None), rule(updates, weights)
    assert kept(plain) == kept(weighted)
    chosen = torch.where(plain.weights > 0, weights, 0.0)
    torch.testing.assert_close(weighted.weights, chosen / chosen.sum())


def clipped_mean(x: np.ndarray, rows: list[int], bound: float) -> np.ndarray:
    """The mean of these rows, none longer than the bound."""
    norms = [float(np.linalg.norm(x[row])) for row in rows]
    scaled = [x[row] * min(1.0, bound / norm) for row, norm in zip(rows, norms, strict=True)]
    return np.asarray(np.mean(scaled, axis=0))


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
