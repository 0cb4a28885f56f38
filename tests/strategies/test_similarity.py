"""DSVD-FL's weights: against the definition in double loops, and what must hold for any updates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thistle.protocol.svd import thin_svd
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Matrix, Spectra
from thistle.strategies.aggregators.similarity import EVEN

LAYERS: tuple[Matrix, ...] = ((0, 6, 10), (66, 3, 6))  # a bias of 6 between them, one of 3 behind
SIZE = 87
ALPHAS = [(i / 4, j / 4, (4 - i - j) / 4) for i in range(5) for j in range(5 - i)]
QUICK = settings(max_examples=40, deadline=None, database=None)

seeds = st.integers(0, 10**6)
counts = st.integers(2, 12)
alphas = st.sampled_from(ALPHAS)


def block(n: int, seed: int = 0, common: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, SIZE, generator=generator) + common * torch.randn(SIZE, generator=generator)


def ranks_of(n: int, rank: int = 3) -> Tensor:
    return torch.full((n, len(LAYERS)), rank)


def spectra_of(updates: Tensor, ranks: Tensor) -> Spectra:
    """By directions; cuts the updates to these ranks, in place."""
    return aggregators.decompose(updates, LAYERS, ranks, torch.ones_like(ranks).bool())


def weights_of(
    updates: Tensor, alpha: Any = EVEN, ranks: Tensor | None = None, relative: bool = True, temperature: float = 0.5
) -> Tensor:
    own = updates.clone()
    spectra = spectra_of(own, ranks_of(len(own)) if ranks is None else ranks)
    terms = aggregators.mean_similarities(aggregators.similarities(own, spectra, relative))
    chosen = aggregators.adapted_alpha(terms) if alpha is None else alpha
    return aggregators.similarity_weights(terms, chosen, temperature)[1]


# ---- the definition --------------------------------------------------------------------------------------------


def slow(updates: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """S_v, S_s, S_l in comparable units by the formulas, pair by pair, layer by layer."""
    n = len(updates)
    cut, polars, values = updates.copy(), [], []
    for i in range(n):
        polars.append([])
        values.append([])
        for number, (start, rows, columns) in enumerate(LAYERS):
            layer = updates[i, start : start + rows * columns].reshape(rows, columns)
            u, s, vt = np.linalg.svd(layer, full_matrices=False)
            k = ranks[i, number]
            polars[i].append((u[:, :k] @ vt[:k], k))
            values[i].append(np.where(np.arange(len(s)) < k, s, 0.0))
            cut[i, start : start + rows * columns] = ((u[:, :k] * s[:k]) @ vt[:k]).reshape(-1)
    sigma = np.array([np.concatenate(each) for each in values])
    c_s = np.median([np.linalg.norm(each) for each in sigma])
    c_l = np.median([np.linalg.norm(each) for each in cut])
    found = np.zeros((3, n, n))
    for i, j in itertools.product(range(n), range(n)):
        parts = [(p * q).sum() / np.sqrt(k * m) for (p, k), (q, m) in zip(polars[i], polars[j], strict=True)]
        found[0, i, j] = np.mean(parts)
        found[1, i, j] = -np.linalg.norm(sigma[i] - sigma[j]) / c_s
        found[2, i, j] = -np.linalg.norm(cut[i] - cut[j]) / c_l
    return found


def to_the_letter(updates: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The paper's eq. 5, one vector at a time: each pair (u, v) with the sign that its decomposition gives it."""
    n = len(updates)
    found = np.zeros((3, n, n))
    for i, j in itertools.product(range(n), range(n)):
        values = 0.0
        for number, (start, rows, columns) in enumerate(LAYERS):
            k, m = int(ranks[i, number]), int(ranks[j, number])
            mine, theirs = (
                thin_svd(torch.from_numpy(updates[row, start : start + rows * columns].reshape(rows, columns)), rank)
                for row, rank in ((i, k), (j, m))
            )
            for place in range(min(k, m)):  # the traces' terms
                u, v = mine.u[:, place].numpy(), mine.v[:, place].numpy()
                found[0, i, j] += (u @ theirs.u[:, place].numpy() + v @ theirs.v[:, place].numpy()) / 2
            for place in range(max(k, m)):
                own = float(mine.sigma[place]) if place < k else 0.0
                others = float(theirs.sigma[place]) if place < m else 0.0
                values += (own - others) ** 2
        found[1, i, j] = -np.sqrt(values)
        found[2, i, j] = -np.sqrt(((updates[i] - updates[j]) ** 2).sum())
    return found


def test_the_papers_scale_is_the_paper_to_the_letter() -> None:
    updates = block(6, 4)
    before = updates.clone()
    ranks = torch.tensor([[1 + i % 5, 1 + i % 3] for i in range(6)])
    expected = to_the_letter(updates.double().numpy(), ranks.numpy())
    spectra = aggregators.decompose(updates, LAYERS, ranks, torch.zeros_like(ranks).bool(), "vectors")
    actual = aggregators.similarities(updates, spectra, relative=False)
    off = ~torch.eye(6).bool()
    np.testing.assert_allclose(actual[:, off].numpy(), expected[:, off.numpy()], rtol=1e-5, atol=1e-5)
    assert torch.equal(updates, before), "whole updates are weighed"
    assert abs(expected[0]).max() > 1, "raw: a sum over layers and vectors, which no bound holds"


def test_similarities_are_the_definition() -> None:
    updates = block(7, 3)
    ranks = torch.tensor([[1 + i % 5, 1 + i % 3] for i in range(7)])
    expected = slow(updates.double().numpy(), ranks.numpy())
    spectra = spectra_of(updates, ranks)
    actual = aggregators.similarities(updates, spectra, relative=True)
    off = ~torch.eye(7).bool()
    np.testing.assert_allclose(actual[:, off].numpy(), expected[:, off.numpy()], rtol=1e-5, atol=1e-5)
    terms = aggregators.mean_similarities(actual)
    for i in range(7):
        np.testing.assert_allclose(terms[:, i], np.delete(expected[:, i], i, axis=1).mean(axis=1), rtol=1e-5, atol=1e-5)
    scores, weights = aggregators.similarity_weights(terms, (0.5, 0.2, 0.3), 0.7)
    by_hand = np.exp(scores.numpy() / 0.7) / np.exp(scores.numpy() / 0.7).sum()
    np.testing.assert_allclose(weights, by_hand, rtol=1e-9)


def layer(row: Tensor, number: int) -> Tensor:
    start, rows, columns = LAYERS[number]
    return row[start : start + rows * columns].view(rows, columns)


def test_updates_are_cut_to_their_rank() -> None:
    updates = block(3)
    cut = updates.clone()
    aggregators.truncate(cut, LAYERS, torch.tensor([[1, 2], [0, 3], [6, 1]]))
    ranks = [[int(torch.linalg.matrix_rank(layer(row, k), rtol=1e-5)) for k in (0, 1)] for row in cut]
    assert ranks == [[1, 2], [6, 3], [6, 1]]
    assert torch.equal(cut[1], updates[1]), "0 and full rank leave a layer as it is, bit for bit"
    assert torch.equal(cut[:, 60:66], updates[:, 60:66])


# ---- properties ------------------------------------------------------------------------------------------------


@QUICK
@given(seeds, counts, alphas, st.booleans())
def test_weights_sum_to_one_and_follow_the_clients(seed: int, n: int, alpha: tuple[float, ...], auto: bool) -> None:
    updates = block(n, seed)
    chosen = None if auto else alpha
    weights = weights_of(updates, chosen)
    assert float(weights.sum()) == pytest.approx(1.0) and bool((weights > 0).all())
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(weights_of(updates[order], chosen), weights[order], rtol=1e-4, atol=1e-6)


@QUICK
@given(seeds, counts, alphas, st.floats(1e-8, 1e8))
def test_only_proportions_matter(seed: int, n: int, alpha: tuple[float, ...], scale: float) -> None:
    updates = block(n, seed)
    torch.testing.assert_close(weights_of(updates * scale, alpha), weights_of(updates, alpha), rtol=1e-4, atol=1e-6)


@QUICK
@given(seeds, st.integers(2, 8), alphas)
def test_equal_clients_weigh_the_same(seed: int, n: int, alpha: tuple[float, ...]) -> None:
    same = weights_of(block(1, seed).expand(n, -1).clone(), alpha)
    torch.testing.assert_close(same, torch.full((n,), 1 / n).double(), rtol=1e-6, atol=0)
    updates = block(n, seed)
    updates[1] = updates[0]
    weights = weights_of(updates, alpha)
    assert float(weights[0]) == pytest.approx(float(weights[1]), rel=1e-4)


@QUICK
@given(seeds, st.integers(1, 8), st.integers(1, 3), st.floats(0.0, 1.0))
def test_a_sign_flipped_copy_weighs_less_than_its_original(seed: int, honest: int, rank: int, noise: float) -> None:
    """For every α that looks at directions at all: singular values alone cannot see a sign."""
    n = honest + 2
    generator = torch.Generator().manual_seed(seed)
    updates = torch.zeros(n, SIZE)
    for start, rows, columns in LAYERS:
        u, _ = torch.linalg.qr(torch.randn(rows, rank, generator=generator))
        v, _ = torch.linalg.qr(torch.randn(columns, rank, generator=generator))
        values = 5.0 + 5.0 * torch.rand(rank, generator=generator).sort(descending=True).values
        for row in updates[:-1]:
            extra = torch.randn(rows, columns, generator=generator)
            extra *= noise / torch.linalg.matrix_norm(extra, ord=2)  # at most a fifth of the k-th singular value
            row[start : start + rows * columns] = ((u * values) @ v.T + extra).reshape(-1)
    updates[-1] = -updates[0]
    for alpha in ALPHAS:
        weights = weights_of(updates, alpha, ranks_of(n, rank))
        if alpha[0] + alpha[2] > 0:
            assert weights[-1] < weights[0], alpha
        else:
            assert float(weights[-1]) == pytest.approx(float(weights[0]), rel=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("kind", ["random", "zero", "one huge", "equal", "one moves"])
def test_no_weights_are_ever_lost(n: int, kind: str) -> None:
    updates = block(n, n)
    if kind == "zero":
        updates.zero_()
    if kind == "one huge":
        updates[-1] *= 1e6
    if kind == "equal":
        updates[:] = updates[0]
    if kind == "one moves":
        updates[1:] = 0
    spectra = spectra_of(updates, ranks_of(n))
    for relative, temperature in ((True, 0.5), (True, 1e-3), (False, 1.0)):
        terms = aggregators.mean_similarities(aggregators.similarities(updates, spectra, relative))
        for alpha in [*ALPHAS, aggregators.adapted_alpha(terms), (0.7, 0.2, 0.2), (0.8, 100.0, 10000.0)]:
            _, weights = aggregators.similarity_weights(terms, alpha, temperature)
            assert bool(torch.isfinite(weights).all()) and float(weights.sum()) == pytest.approx(1.0)


def test_a_single_client_has_score_zero() -> None:
    updates = block(1)
    terms = aggregators.mean_similarities(aggregators.similarities(updates, spectra_of(updates, ranks_of(1)), True))
    assert terms.tolist() == [[0.0], [0.0], [0.0]]


def test_models_without_matrices_go_by_their_updates() -> None:
    updates = torch.tensor([[1.0, 2.0], [1.1, 2.0], [-9.0, 3.0]])
    empty = torch.zeros(3, 0).long()
    spectra = aggregators.decompose(updates, (), empty, empty.bool())
    terms = aggregators.mean_similarities(aggregators.similarities(updates, spectra, True))
    assert bool((terms[:2] == 0).all()) and terms[2].argmin() == 2


# ---- α = auto --------------------------------------------------------------------------------------------------


def test_alpha_goes_to_the_term_that_splits_the_clients() -> None:
    noise = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]).double()
    split = torch.tensor([0.0, 0.01, 0.02, 5.0, 5.01, 5.02, 5.03, 5.04, 5.05, 5.06]).double()
    for place in range(3):
        terms = torch.stack([split if i == place else noise for i in range(3)])
        alpha = aggregators.adapted_alpha(terms)
        assert float(alpha.sum()) == pytest.approx(1) and float(alpha[place]) > 0.9
        torch.testing.assert_close(aggregators.adapted_alpha(terms * torch.tensor([[1e3], [1e-3], [7.0]])), alpha)
        torch.testing.assert_close(aggregators.adapted_alpha(terms.flip(1)), alpha)


def test_a_few_that_are_too_much_alike_do_not_count_as_odd_ones_out() -> None:
    """Colluders that all send the same have the highest scores: that is no reason to trust this term."""
    few_high = torch.tensor([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 5.0, 5.01, 5.02]).double()
    few_low = -few_high
    terms = torch.stack([few_high, few_low, torch.zeros(10).double()])
    alpha = aggregators.adapted_alpha(terms)
    assert float(alpha[1]) > 0.9 and float(alpha[2]) == 0


def test_nothing_to_adapt_to() -> None:
    for terms in (torch.zeros(3, 1), torch.rand(3, 2), torch.full((3, 9), -2.0)):
        assert aggregators.adapted_alpha(terms.double()).tolist() == pytest.approx(list(EVEN))
