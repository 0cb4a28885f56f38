"""Buffers follow the weights of their clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thistle.protocol.layout import Layout, State
from thistle.strategies.buffers import combine_buffers
from torch import Tensor, nn

WIDTH = 3
LAYOUT = Layout.of(nn.Sequential(nn.Linear(2, WIDTH), nn.BatchNorm1d(WIDTH)))
MEAN, VARIANCE, COUNTER = (f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))
SENT = {MEAN: torch.full((WIDTH,), 7.0), VARIANCE: torch.full((WIDTH,), 8.0), COUNTER: torch.tensor(9)}


def states(n: int, seed: int = 0) -> list[State]:
    rng = np.random.default_rng(seed)
    return [
        {
            MEAN: torch.from_numpy(rng.normal(size=WIDTH).astype(np.float32)),
            VARIANCE: torch.from_numpy(rng.uniform(0, 3, WIDTH).astype(np.float32)),
            COUNTER: torch.tensor(int(rng.integers(100))),
        }
        for _ in range(n)
    ]


def weights(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=7).filter(any), st.integers(0, 99), st.floats(0.01, 100))
def test_floats_are_averaged_and_variances_add_the_spread_of_the_means(
    integers: list[int], seed: int, scale: float
) -> None:
    given_ = states(len(integers), seed)
    share = np.array(integers) / sum(integers)
    means = np.stack([state[MEAN].double().numpy() for state in given_])
    variances = np.stack([state[VARIANCE].double().numpy() for state in given_])
    combined = combine_buffers(LAYOUT, given_, weights(*integers) * scale, SENT)
    np.testing.assert_allclose(combined[MEAN], share @ means, rtol=1e-5, atol=1e-6)
    spread = share @ (means - share @ means) ** 2
    np.testing.assert_allclose(combined[VARIANCE], share @ variances + spread, rtol=1e-5, atol=1e-6)
    heard = sorted(int(state[COUNTER]) for state, one in zip(given_, integers, strict=True) if one)
    assert int(combined[COUNTER]) == heard[(len(heard) - 1) // 2]


def test_weighted_by_size_they_are_the_statistics_of_all_data_together() -> None:
    rng = np.random.default_rng(3)
    parts = [rng.normal(shift, 1 + shift, size=(count, WIDTH)) for shift, count in ((0, 40), (1, 25), (4, 5))]
    given_ = [
        {MEAN: torch.tensor(p.mean(0)).float(), VARIANCE: torch.tensor(p.var(0)).float(), COUNTER: torch.tensor(1)}
        for p in parts
    ]
    combined = combine_buffers(LAYOUT, given_, weights(40, 25, 5), SENT)
    together = np.concatenate(parts)
    np.testing.assert_allclose(combined[MEAN], together.mean(0), rtol=1e-5)
    np.testing.assert_allclose(combined[VARIANCE], together.var(0), rtol=1e-5)


def test_who_has_no_weight_has_no_say() -> None:
    given_ = states(4)
    wild = {MEAN: torch.full((WIDTH,), 1e6), VARIANCE: torch.full((WIDTH,), 1e6), COUNTER: torch.tensor(2**40)}
    alone = combine_buffers(LAYOUT, given_, weights(1, 2, 3, 4), SENT)
    beside = combine_buffers(LAYOUT, [*given_, wild], weights(1, 2, 3, 4, 0), SENT)
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_without_weights_the_coordinate_median() -> None:
    given_ = states(5)
    combined = combine_buffers(LAYOUT, given_, None, SENT)
    for name in (MEAN, VARIANCE, COUNTER):
        stacked = np.stack([state[name].numpy() for state in given_])
        np.testing.assert_array_equal(combined[name], np.median(stacked, axis=0))


@pytest.mark.parametrize("n", [1, 3])
def test_nobody_heard_leaves_what_was_sent(n: int) -> None:
    combined = combine_buffers(LAYOUT, states(n), weights(*[0.0] * n), SENT)
    assert combined.keys() == SENT.keys()
    assert all(torch.equal(combined[name], SENT[name]) for name in SENT)


@pytest.mark.parametrize("given_weights", [None, weights(0.2, 0.3, 0.5), weights(0, 0, 0)])
def test_types_and_shapes_stay(given_weights: Tensor | None) -> None:
    combined = combine_buffers(LAYOUT, states(3), given_weights, SENT)
    assert list(combined) == [entry.name for entry in LAYOUT.buffers]
    for entry in LAYOUT.buffers:
        assert combined[entry.name].dtype == entry.dtype and tuple(combined[entry.name].shape) == entry.shape
