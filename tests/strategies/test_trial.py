"""Bant: trust by trials on the server's data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.flower_app import digits, plain
from thistle.protocol.layout import Layout
from thistle.strategies.aggregators.trial import trial_trust
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.rules.bant import TRUST, TrialAndTrust
from thistle.strategies.steps.learning import ServerData, ServerRound

D = 6


class Bowl:
    """A server whose loss is ½‖x‖²."""

    def loss(self, vector: Tensor) -> float:
        return 0.5 * float(vector.double() @ vector.double())

    def gradient(self) -> Tensor:
        raise AssertionError("no gradient is needed")

    def learn(self, start: Tensor, rate: float) -> Tensor:
        raise AssertionError("nothing is learnt")


def ref_trust(gains: list[float], before: list[float], beta: float) -> tuple[list[float], list[float]]:
    good = [max(0.0, gain) for gain in gains]
    if sum(good) == 0:
        trust = [0.999 * old + 0.001 / len(gains) for old in before]
        return trust, [one / sum(trust) for one in trust]
    trust = [(1 - beta) * old + beta * one / sum(good) for old, one in zip(before, good, strict=True)]
    left = [one if gain > 0 else 0.0 for one, gain in zip(trust, gains, strict=True)]
    return trust, [one / sum(left) for one in left]


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 1)), min_size=1, max_size=9), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_trust(clients: list[tuple[float, float]], beta: float) -> None:
    gains, before = [list(column) for column in zip(*clients, strict=True)]
    expected, shares = ref_trust(gains, before, beta)
    if not all(np.isfinite(shares)) or 0 < sum(max(0.0, gain) for gain in gains) < 1e-100:
        return
    tensors = (torch.tensor(each, dtype=torch.float64) for each in (gains, before))
    trust, weights = trial_trust(*tensors, beta)
    np.testing.assert_allclose(trust, expected, rtol=1e-9)
    np.testing.assert_allclose(weights, shares, rtol=1e-9, atol=1e-12)


def test_a_model_without_a_finite_loss_is_not_trusted() -> None:
    gains = torch.tensor([1.0, -torch.inf, torch.nan], dtype=torch.float64)
    assert trial_trust(gains, torch.full((3,), 1 / 3, dtype=torch.float64), 0.5)[1].tolist() == [1.0, 0.0, 0.0]


def one_round(updates: Tensor, ids: tuple[int, ...], memory: dict[str, np.ndarray], model: Tensor) -> Progress:
    prior = torch.full((len(ids),), 1 / len(ids), dtype=torch.float64)
    round = Round(1, ids, prior, model, 0.1, Bowl(), memory, connected=10)
    return TrialAndTrust(0.5)(round, Progress.begin(updates))


def test_who_raises_the_loss_is_out_and_trust_is_earned_over_rounds() -> None:
    model, memory = torch.ones(D), dict[str, np.ndarray]()
    updates = torch.stack([-0.5 * model, -0.1 * model, 5 * model])
    first = one_round(updates, (4, 7, 9), memory, model)
    assert first.dropped_by == {2: "bant"} and first.heard().tolist() == [True, True, False]
    gains = [3 - 0.75, 3 - 0.81 * 3, 3 - 36 * 3]
    assert first.scores is not None and first.scores.tolist() == pytest.approx(gains, rel=1e-5)
    trust, weights = ref_trust(gains, [0.1] * 3, 0.5)
    assert first.weights is not None and first.weights.tolist() == pytest.approx(weights, rel=1e-5)
    torch.testing.assert_close(first.step, (weights[0] * updates[0] + weights[1] * updates[1]).float())
    memory |= first.notes
    assert TRUST.of(memory, [4, 7, 9]).tolist() == pytest.approx(trust, rel=1e-5)
    second = one_round(updates[[1, 1]], (7, 8), memory, model)
    _, shares = ref_trust([1.0, 1.0], [trust[1], 0.1], 0.5)
    assert second.weights is not None and second.weights.tolist() == pytest.approx(shares, rel=1e-5)


def test_a_majority_that_raises_the_loss_has_no_say() -> None:
    model = torch.ones(D)
    done = one_round(torch.stack([*[5 * model] * 7, *[-0.2 * model] * 3]), tuple(range(10)), {}, model)
    torch.testing.assert_close(done.step, -0.2 * model)


@pytest.mark.parametrize("updates", [torch.zeros(1, D), torch.zeros(2, D), torch.ones(3, D)])
def test_where_nobody_lowers_the_loss_all_count_by_their_trust(updates: Tensor) -> None:
    done = one_round(updates, tuple(range(len(updates))), {}, torch.ones(D))
    assert done.kept.all()
    torch.testing.assert_close(done.step, updates[0])


def test_the_order_of_clients_does_not_matter() -> None:
    rows = torch.randn(5, D, generator=torch.Generator().manual_seed(0))
    plain_, turned = (one_round(each, ids, {}, torch.ones(D)) for each, ids in
                      ((rows, (1, 2, 3, 4, 5)), (rows.flip(0), (5, 4, 3, 2, 1))))  # fmt: skip
    assert plain_.weights is not None and turned.weights is not None
    torch.testing.assert_close(plain_.weights, turned.weights.flip(0))
    torch.testing.assert_close(plain_.step, turned.step)


def test_the_servers_loss_is_the_mean_over_its_data() -> None:
    """600 images: more than are looked at together."""
    torch.manual_seed(0)
    network: nn.Module = plain()
    x, y = (part[:600] for part in digits())
    layout = Layout.of(network)
    how = {"epochs": 1, "batch_size": 10, "weight_decay": 0.0, "seed": 0}
    server = ServerRound(ServerData.of(network, layout, (x, y), **how), 1, dict(network.state_dict()))
    vector = layout.vector(network.state_dict()) * 1.5
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
        assert server.loss(vector) == pytest.approx(float(cross_entropy(network(x), y)), rel=1e-5)
