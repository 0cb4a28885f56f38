"""DnC and Multi-Metrics against their definitions, and what must hold for any updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies.blocks import attacked, block, check_edges, check_huge, check_order, check_weights, kept
from thistle.strategies.aggregators import Aggregate, dnc, multi_metrics

MODEL = block(1, seed=77, shift=0.0)[0] * 3


def without_outliers(updates: Tensor, weights: Tensor | None = None) -> Aggregate:
    f = min(3, (len(updates) - 1) // 2)
    return dnc(updates, f, np.random.default_rng(1), coordinates=30, weights=weights)


def ref_dnc(x: np.ndarray, f: int, samples: list[np.ndarray]) -> list[int]:
    left = set(range(len(x)))
    for sample in samples:
        rows = x[:, sample]
        rows = rows - rows.mean(axis=0)
        v = np.linalg.svd(rows)[2][0]
        scores = [float(row @ v) ** 2 for row in rows]
        left &= set(sorted(range(len(x)), key=lambda i: scores[i])[: len(x) - f])
    return sorted(left)


@pytest.mark.parametrize(
    ("n", "f", "c", "repeats"), [(5, 1, 1.0, 1), (10, 3, 1.0, 1), (20, 4, 1.5, 1), (20, 2, 1.0, 4)]
)
def test_dnc(n: int, f: int, c: float, repeats: int) -> None:
    for seed in range(5):
        updates = block(n, seed=seed)
        draws = np.random.default_rng(seed)
        samples = [draws.choice(60, 25, replace=False, shuffle=False) for _ in range(repeats)]
        expected = ref_dnc(updates.double().numpy(), round(c * f), samples)
        found = dnc(updates, f, np.random.default_rng(seed), c, coordinates=25, repeats=repeats)
        assert kept(found) == expected
        np.testing.assert_allclose(found.vector, updates.double().numpy()[expected].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_dnc_scores_are_squared_projections() -> None:
    updates = block(8)
    rows = updates.double().numpy() - updates.double().numpy().mean(axis=0)
    found = dnc(updates, 0, np.random.default_rng(0), coordinates=1000)
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, (rows @ np.linalg.svd(rows)[2][0]) ** 2, rtol=1e-3, atol=1e-5)


def test_where_the_repeats_leave_nobody_those_dropped_least_often_stay() -> None:
    updates = torch.eye(4) + 0.01 * block(4, 4)
    found = dnc(updates, 3, np.random.default_rng(3), coordinates=1, repeats=40)
    assert 1 <= len(kept(found)) < 4 and abs(float(found.weights.sum()) - 1) < 1e-9


def test_dnc_refuses_to_drop_everybody() -> None:
    with pytest.raises(ValueError, match="DnC needs"):
        dnc(block(3), 3, np.random.default_rng(0))


def ref_multi_metrics(x: np.ndarray, model: np.ndarray, count: int) -> list[int]:
    def features(update: np.ndarray) -> list[float]:
        whole = model + update
        cosine = whole @ model / (np.linalg.norm(whole) * np.linalg.norm(model))
        return [np.abs(update).sum(), np.sqrt((update**2).sum()), cosine]

    own = [features(update) for update in x]
    t = np.array([[sum(abs(a[k] - b[k]) for b in own) for k in range(3)] for a in own])
    inverse = np.linalg.inv(np.cov(t.T))
    scores = [np.sqrt(row @ inverse @ row) for row in t]
    return sorted(sorted(range(len(x)), key=lambda i: scores[i])[:count])


@pytest.mark.parametrize(
    ("n", "keep", "count"), [(10, 0.3, 3), (10, 0.29, 2), (13, 1.0, 13), (7, 0.1, 1), (100, 0.29, 29)]
)
def test_multi_metrics(n: int, keep: float, count: int) -> None:
    for seed in range(5):
        updates = block(n, seed=seed)
        expected = ref_multi_metrics(updates.double().numpy(), MODEL.double().numpy(), count)
        found = multi_metrics(updates, MODEL, keep)
        assert kept(found) == expected
        np.testing.assert_allclose(found.vector, updates.double().numpy()[expected].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_multi_metrics_sees_small_angles_of_a_long_model() -> None:
    """Updates a thousandth of the model: float32 cosines would all be 1."""
    updates, model = block(10, 5000, shift=0.0) * 1e-3, block(1, 5000, seed=5)[0]
    expected = ref_multi_metrics(updates.double().numpy(), model.double().numpy(), 3)
    assert kept(multi_metrics(updates, model, 0.3)) == expected


@pytest.mark.parametrize("rule", [without_outliers, lambda u, w: multi_metrics(u, MODEL, 0.3, w)], ids=["dnc", "multi"])
def test_edges_and_weights(rule: object) -> None:
    check_edges(rule)  # type: ignore[arg-type]
    check_huge(rule)  # type: ignore[arg-type]
    check_weights(rule, block(9))  # type: ignore[arg-type]


@given(st.integers(3, 14), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_the_order_of_clients_does_not_matter(n: int, seed: int) -> None:
    check_order(without_outliers, block(n, seed=seed), seed)
    odd = 2 * n + 1  # of an even number, the two in the middle may be equally like the others, and the first is taken
    check_order(lambda u, w: multi_metrics(u, MODEL, 0.3, w), block(odd, seed=seed), seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_blatant_attack_is_dropped(seed: int) -> None:
    updates = attacked(seed=seed, noise=0.3)
    assert kept(dnc(updates, 3, np.random.default_rng(0), coordinates=40)) == [3, 4, 5, 6, 7, 8, 9]
    assert min(kept(multi_metrics(updates, MODEL, 0.3))) >= 3


def test_numpy_in_numpy_out() -> None:
    found = dnc(block(6).numpy(), 1, np.random.default_rng(0))
    assert isinstance(found.vector, np.ndarray) and isinstance(found.scores, np.ndarray)
