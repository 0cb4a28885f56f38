"""FLAME and SignGuard against their definitions: HDBSCAN as scikit-learn has it, MeanShift written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN
from torch import Tensor

from tests.strategies.blocks import (
    attacked,
    block,
    check_edges,
    check_huge,
    check_order,
    check_weights,
    clipped_mean,
    kept,
    lower_median,
)
from thistle.strategies.aggregators import Aggregate, flame, signguard
from thistle.strategies.aggregators.clusters import cosine_distances, largest_cluster, majority_cluster, sign_shares

MODEL = block(1, seed=77, shift=0.0)[0] * 3


def usual_signs(updates: Tensor, weights: Tensor | None = None) -> Aggregate:
    return signguard(updates, np.random.default_rng(1), share=0.5, weights=weights)


def majority(updates: Tensor, weights: Tensor | None = None) -> Aggregate:
    return flame(updates, MODEL, weights=weights)


# ---- FLAME -------------------------------------------------------------------------------------------------------


def ref_cosine_distances(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1)
    return np.array([[1 - a @ b / (p * q) for b, q in zip(rows, norms, strict=True)]
                     for a, p in zip(rows, norms, strict=True)])  # fmt: skip


def ref_hdbscan(distances: np.ndarray) -> list[int]:
    n = len(distances)
    model = HDBSCAN(
        min_cluster_size=n // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    )
    return np.flatnonzero(model.fit_predict(distances) >= 0).tolist()


@pytest.mark.parametrize("length", [1.0, 1e-3])
def test_cosine_distances(length: float) -> None:
    updates = block(9, 500) * length
    x, model = updates.double().numpy(), block(1, 500, seed=3)[0]
    np.testing.assert_allclose(cosine_distances(updates), ref_cosine_distances(x), atol=1e-6)
    expected = ref_cosine_distances(x + model.double().numpy())
    np.testing.assert_allclose(cosine_distances(updates, model), expected, rtol=1e-4, atol=1e-12)


@given(st.integers(3, 30), st.integers(0, 2**31), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_majority_is_hdbscans_cluster(n: int, seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    points = draw.integers(0, 4, (n, 2)).astype(float) if ties else draw.normal(size=(n, 3))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = majority_cluster(torch.from_numpy(distances)).nonzero().flatten().tolist()
    assert found == ref_hdbscan(distances) and len(found) > n // 2


@pytest.mark.parametrize("n", [3, 6, 11, 20])
def test_flame(n: int) -> None:
    for seed in range(5):
        updates = block(n, seed=seed)
        updates[0] *= 4
        x = updates.double().numpy()
        expected = ref_hdbscan(ref_cosine_distances(x + MODEL.double().numpy()))
        found = flame(updates, MODEL)
        assert kept(found) == expected
        bound = lower_median([float(np.linalg.norm(row)) for row in x])
        np.testing.assert_allclose(found.vector, clipped_mean(x, expected, bound), rtol=1e-4, atol=1e-6)


def test_flames_noise_is_lambda_times_the_median_length() -> None:
    updates = block(9, 20_000)
    plain = flame(updates).vector
    noisy, again = (flame(updates, noise=0.01, generator=torch.Generator().manual_seed(4)).vector for _ in range(2))
    assert torch.equal(noisy, again)
    spread = float((noisy - plain).std()) / (0.01 * lower_median(torch.linalg.vector_norm(updates, dim=1).tolist()))
    assert 0.97 < spread < 1.03


# ---- SignGuard ---------------------------------------------------------------------------------------------------


def ref_mean_shift(points: np.ndarray) -> list[int]:
    """The largest cluster: flat kernel, a start in every bin, centres within a bandwidth of a fuller one dropped."""

    def far(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.linalg.norm(a - b))

    n = len(points)
    neighbours = [sorted(far(p, q) for q in points)[max(1, n // 2) - 1] for p in points]
    width = float(np.mean(neighbours))
    if width == 0:
        return list(range(n))
    centres = []
    for start in {tuple(np.round(p / width)) for p in points}:
        centre = np.array(start) * width
        for _ in range(300):
            within = [p for p in points if far(p, centre) <= width]
            if not within:
                break
            before, centre = centre, np.mean(within, axis=0)
            if far(before, centre) <= 1e-3 * width:
                break
        if within:
            centres.append((len(within), tuple(centre)))
    chosen: list[tuple[float, ...]] = []
    for _, centre in sorted(set(centres), reverse=True):
        if all(far(np.array(centre), np.array(other)) > width for other in chosen):
            chosen.append(centre)
    nearest = [int(np.argmin([far(p, np.array(c)) for c in chosen])) for p in points]
    mine = [c if far(p, np.array(chosen[c])) <= width else -1 for p, c in zip(points, nearest, strict=True)]
    sizes = [mine.count(c) for c in range(len(chosen))]
    return [row for row, c in enumerate(mine) if c == int(np.argmax(sizes))]


@pytest.mark.parametrize(("n", "seed"), [(n, seed) for n in (2, 5, 10, 30) for seed in range(6)])
def test_signguard(n: int, seed: int) -> None:
    updates = block(n, 200, seed)
    updates[: n // 4] *= -2
    updates[-1] *= 7
    updates[:, :20] = torch.where(updates[:, :20].abs() < 0.5, 0.0, updates[:, :20])
    x = updates.double().numpy()
    sample = np.random.default_rng(seed).choice(200, 80, replace=False, shuffle=False)
    parts = np.array([[(row > 0).mean(), (row == 0).mean(), (row < 0).mean()] for row in x[:, sample]])
    parts = parts / np.maximum(parts.max(axis=0), 1e-8)
    alike = ref_mean_shift(parts)
    assert largest_cluster(sign_shares(updates[:, sample])).nonzero().flatten().tolist() == alike
    norms = [float(np.linalg.norm(row)) for row in x]
    bound = lower_median(norms)
    usual = [row for row in range(n) if 0.1 * bound <= norms[row] <= 3 * bound]
    expected = [row for row in usual if row in alike] or usual
    found = signguard(updates, np.random.default_rng(seed), share=0.4)
    assert kept(found) == expected
    np.testing.assert_allclose(found.vector, clipped_mean(x, expected, bound), rtol=1e-4, atol=1e-6)


# ---- both --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [majority, usual_signs])
def test_edges_and_weights(rule: object) -> None:
    check_edges(rule)  # type: ignore[arg-type]
    check_huge(rule)  # type: ignore[arg-type]
    check_weights(rule, attacked())  # type: ignore[arg-type]


@given(st.integers(4, 14), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_the_order_of_clients_does_not_matter(bad: int, seed: int) -> None:
    check_order(majority, block(bad, seed=seed), seed)
    check_order(usual_signs, attacked(2 * bad + 1, bad - 2, 400, seed), seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_blatant_attack_is_dropped_and_length_buys_nothing(seed: int) -> None:
    updates = attacked(seed=seed, d=400)
    for rule in (lambda u, w: flame(u), majority_over_400, usual_signs):
        assert min(kept(rule(updates, None))) >= 3
    bound = lower_median(torch.linalg.vector_norm(updates, dim=1).tolist())
    for found in (flame(updates), usual_signs(updates)):
        assert float(torch.linalg.vector_norm(found.vector)) <= bound * (1 + 1e-6)


def majority_over_400(updates: Tensor, weights: Tensor | None) -> Aggregate:
    return flame(updates, block(1, 400, seed=9)[0], weights=weights)
