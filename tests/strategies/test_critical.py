"""FedCPA's weights against the definition, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thistle.strategies import aggregators
from thistle.strategies.aggregators import critical

WIDTH = 900


def naive_pair(a: np.ndarray, b: np.ndarray) -> float:
    count = int(0.01 * len(a))
    total = 0.0
    for sign in (-1, 1):
        one, other = set(np.argsort(sign * a)[:count].tolist()), set(np.argsort(sign * b)[:count].tolist())
        both = sorted(one & other)
        rho = 0.0
        if len(both) >= 3 and np.std(a[both]) > 0 and np.std(b[both]) > 0:
            rho = float(np.corrcoef(a[both], b[both])[0, 1])
        total += 0.5 * (rho + 1) / 2 + 0.5 * len(both) / len(one | other)
    return total


def naive(updates: np.ndarray, model: np.ndarray, step: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    own = [np.abs(update * (model + update)) for update in updates]
    n = len(own)
    totals = np.array([np.mean([naive_pair(own[i], own[j]) for j in range(n) if j != i]) for i in range(n)])
    if step is not None:
        totals += [naive_pair(each, np.abs(step * model)) for each in own]
    scaled = np.clip((totals - totals.min()) / (totals.max() - totals.min()), 0.01, 0.99)
    return totals, np.clip(np.log(scaled / (1 - scaled)) + 0.5, 0, 1)


@settings(max_examples=25, deadline=None, database=None)
@given(st.integers(0, 10**6), st.integers(3, 7), st.booleans())
def test_weights_are_the_definition(seed: int, n: int, with_step: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    model, common = torch.randn(2, WIDTH, generator=generator)
    updates = common + 0.1 * torch.randn(n, WIDTH, generator=generator)
    step = common.clone() if with_step else None
    totals, weights = aggregators.critical_weights(updates, model, step)
    exact = (t.double().numpy() for t in (updates, model))
    expected, wanted = naive(*exact, None if step is None else step.double().numpy())
    np.testing.assert_allclose(totals, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(weights, wanted, rtol=1e-2, atol=2e-3)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    updates, model = torch.randn(5, WIDTH, generator=generator), torch.randn(WIDTH, generator=generator)
    whole = aggregators.critical_weights(updates, model, None)[0]
    monkeypatch.setattr(critical, "CHUNK", 7)
    torch.testing.assert_close(aggregators.critical_weights(updates, model, None)[0], whole)


def test_equal_clients_and_a_single_one_are_a_plain_mean() -> None:
    model = torch.rand(WIDTH)
    for n in (1, 4):
        assert aggregators.critical_weights(torch.rand(WIDTH).expand(n, -1), model, None)[1].tolist() == [1.0] * n
    assert aggregators.critical_weights(torch.zeros(3, WIDTH), model, None)[1].tolist() == [1.0] * 3


def test_noise_weighs_nothing_among_those_who_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    model, common = torch.randn(2, WIDTH, generator=generator)
    updates = common + 0.05 * torch.randn(8, WIDTH, generator=generator)
    updates[5] = 10 * torch.randn(WIDTH, generator=generator)
    weights = aggregators.critical_weights(updates, model, None)[1]
    assert float(weights[5]) == 0 and float(weights.max()) == 1
