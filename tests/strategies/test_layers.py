"""LASA against its definition, and what must hold for any updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.strategies.blocks import attacked, block, check_edges, check_huge, check_order, lower_median
from thistle.protocol.layout import Layout
from thistle.strategies.aggregators import Aggregate, Layer, lasa
from thistle.strategies.rules.lasa import layers_of

LAYERS = (Layer(0, 40, True), Layer(40, 44, False), Layer(44, 60, True))


def usual(updates: Tensor, weights: Tensor | None = None) -> Aggregate:
    return lasa(updates, LAYERS, weights=weights)


def ref_lasa(x: np.ndarray, sparsity: float, norm_bound: float, sign_bound: float) -> tuple[np.ndarray, np.ndarray]:
    n, d = x.shape
    norms = [float(np.linalg.norm(row)) for row in x]
    x = np.array([row * min(1.0, lower_median(norms) / norm) for row, norm in zip(x, norms, strict=True)])
    matrix = [j for layer in LAYERS if layer.sparse for j in range(layer.start, layer.stop)]
    count = int(len(matrix) * (1 - sparsity) + 1e-9)
    for row in x:
        for j in sorted(matrix, key=lambda j: -abs(row[j]))[count:]:
            row[j] = 0.0
    vector, weights = np.zeros(d), np.zeros(n)
    for layer in LAYERS:
        part = x[:, layer.start : layer.stop]
        lengths = np.array([np.sqrt((row**2).sum()) for row in part])
        signs = [np.sign(row) for row in part]
        balance = np.array([0.5 * (1 + s.sum() / max(1, np.abs(s).sum()) * (1 - sparsity)) for s in signs])
        good = [
            i
            for i in range(n)
            if abs(lengths[i] - np.median(lengths)) / lengths.std() < norm_bound
            and abs(balance[i] - np.median(balance)) / balance.std() < sign_bound
        ] or list(range(n))
        vector[layer.start : layer.stop] = part[good].mean(axis=0)
        weights[good] += (layer.stop - layer.start) / d / len(good)
    return vector, weights


@pytest.mark.parametrize(("n", "sparsity"), [(3, 0.3), (10, 0.3), (10, 0.0), (21, 0.7), (40, 0.95)])
def test_lasa(n: int, sparsity: float) -> None:
    for seed in range(5):
        updates = block(n, seed=seed, shift=0.1)
        updates[0] *= 9
        vector, weights = ref_lasa(updates.double().numpy(), sparsity, 2.0, 1.0)
        found = lasa(updates, LAYERS, sparsity)
        np.testing.assert_allclose(found.vector, vector, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.weights, weights, atol=1e-9)


def test_long_layers_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = block(8)
    whole = usual(updates)
    monkeypatch.setattr("thistle.strategies.aggregators.layers.CHUNK", 7)
    parts = usual(updates)
    torch.testing.assert_close(parts.vector, whole.vector)
    assert torch.equal(parts.weights, whole.weights)


def test_each_layer_chooses_its_own() -> None:
    """A client that is odd in one layer counts in the others."""
    updates = block(11, shift=0.0)
    updates[0, 44:] = 10.0
    found = lasa(updates, LAYERS, 0.0, norm_bound=1e9, sign_bound=2.0)
    assert found.scores is not None and float(found.scores[0]) == pytest.approx(44 / 60)


def test_weights_change_the_means_of_each_layer() -> None:
    updates, weights = block(9), torch.arange(1.0, 10.0)
    loose = lasa(updates, LAYERS, 0.0, norm_bound=1e9, sign_bound=1e9, weights=weights)
    torch.testing.assert_close(loose.weights, weights.double() / 45)


def test_the_layers_of_a_model() -> None:
    layout = Layout.of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)))
    spans = [(0, 18, True), (18, 20, False), (20, 22, False), (22, 24, False), (24, 48, True), (48, 51, False)]
    assert list(layers_of(layout)) == spans


def test_layers_must_cover_the_vector() -> None:
    with pytest.raises(ValueError, match="LASA needs layers that cover"):
        lasa(block(3, 61), LAYERS)


def test_edges() -> None:
    check_edges(lambda u, w: lasa(u, LAYERS, 0.0, weights=w))
    check_huge(usual)
    for updates in (torch.zeros(4, 60), block(2), block(1)):
        assert torch.isfinite(usual(updates).vector).all()


@given(st.integers(3, 14), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_the_order_of_clients_does_not_matter(n: int, seed: int) -> None:
    check_order(usual, block(n, seed=seed), seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_blatant_attack_is_dropped(seed: int) -> None:
    found = usual(attacked(seed=seed, noise=0.3))
    assert float(found.weights[:3].max()) < 0.1 * float(found.weights[3:].max())
