"""Buffers are combined so that fewer than half of the clients cannot move them outside of what the others report."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout, State
from thistle.strategies.buffers import (
    GROWTH,
    LEAST,
    NORMAL,
    OUTLYING,
    PLAUSIBLE,
    RATIO,
    SMALLEST,
    STEP,
    Statistics,
    combine_buffers,
    median,
)
from thistle.tasks.models import build_model

WIDTH = 3
LAYOUT = Layout.of(nn.Sequential(nn.Linear(2, WIDTH), nn.BatchNorm1d(WIDTH)))
MEAN, VARIANCE, COUNTER = (f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))
SENT = {MEAN: torch.zeros(WIDTH), VARIANCE: torch.ones(WIDTH), COUNTER: torch.tensor(9)}
WILD = [-1e6, -30.0, 0.0, 30.0, 1e6]


def state(mean: float | np.ndarray, variance: float | np.ndarray, count: int = 12) -> State:
    means, variances = (torch.tensor(np.broadcast_to(v, WIDTH), dtype=torch.float32) for v in (mean, variance))
    return {MEAN: means, VARIANCE: variances, COUNTER: torch.tensor(count)}


def states(n: int, seed: int = 0) -> list[State]:
    rng = np.random.default_rng(seed)
    return [state(rng.uniform(-2, 2, WIDTH), rng.uniform(0.5, 3, WIDTH), int(rng.integers(10, 100))) for _ in range(n)]


def test_means_and_variances_are_medians_and_the_spread_of_the_means_is_added() -> None:
    given_ = [state(m, v, c) for m, v, c in ((0.0, 1.0, 10), (0.2, 1.4, 11), (1.0, 2.0, 12), (0.4, 1.2, 99))]
    combined = combine_buffers(LAYOUT, given_, SENT)
    np.testing.assert_allclose(combined[MEAN], 0.3, rtol=1e-6)
    spread = (NORMAL * 0.2) ** 2  # distances 0.3, 0.1, 0.7, 0.1
    np.testing.assert_allclose(combined[VARIANCE], 1.3 + spread, rtol=1e-6)
    assert int(combined[COUNTER]) == 11


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 9), st.data())
def test_fewer_than_half_move_nothing_far_from_what_the_others_report(honest: int, data: st.DataObject) -> None:
    """The median is between honest reports. Leaving outliers out moves it by no more than what counts as one."""
    liars = data.draw(st.integers(0, honest - 1))
    true = states(honest, data.draw(st.integers(0, 99)))
    draw = lambda: data.draw(st.sampled_from(WILD))  # noqa: E731
    lies = [state(draw(), abs(draw()), data.draw(st.sampled_from([0, 2**31]))) for _ in range(liars)]
    combined = combine_buffers(LAYOUT, [*lies, *true], SENT)
    means, variances = (torch.stack([one[name] for one in true]) for name in (MEAN, VARIANCE))
    lowest, highest = means.min(0).values, means.max(0).values
    deviation = torch.maximum(NORMAL * (highest - lowest), LEAST * variances.max(0).values.sqrt())
    assert (combined[MEAN] >= lowest - OUTLYING * deviation).all()
    assert (combined[MEAN] <= highest + OUTLYING * deviation).all()
    assert (combined[VARIANCE] > 0).all()
    counts = [int(one[COUNTER]) for one in true]
    assert min(counts) <= int(combined[COUNTER]) <= max(counts)


@pytest.mark.parametrize("lie", [(30.0, 1.0), (-1e6, 1.0), (1.0, 0.0), (1.0, 1e-12), (1.0, 1e6), (1e6, 1e6)])
@pytest.mark.parametrize("liars", [1, 4])
def test_gross_lies_change_nothing(lie: tuple[float, float], liars: int) -> None:
    """Not even in the direction in which they all lie: six honest clients alone give the same."""
    true = states(6, 5)
    alone = combine_buffers(LAYOUT, true, SENT)
    beside = combine_buffers(LAYOUT, [*[state(*lie)] * liars, *true], SENT)
    assert all(torch.equal(alone[name], beside[name]) for name in (MEAN, VARIANCE))


def test_of_a_normal_population_they_are_the_statistics_of_all_data_together() -> None:
    rng = np.random.default_rng(3)
    parts = [rng.normal(rng.normal(size=WIDTH), 1.0, size=(200, WIDTH)) for _ in range(401)]
    combined = combine_buffers(LAYOUT, [state(part.mean(0), part.var(0)) for part in parts], SENT)
    together = np.concatenate(parts)
    np.testing.assert_allclose(combined[MEAN], together.mean(0), atol=0.15)
    np.testing.assert_allclose(combined[VARIANCE], together.var(0), rtol=0.2)


def test_even_a_majority_moves_them_only_so_far_in_a_round() -> None:
    combined = combine_buffers(LAYOUT, [state(1e6, 1e6)] * 3, SENT)
    np.testing.assert_allclose(combined[MEAN], STEP)
    np.testing.assert_allclose(combined[VARIANCE], GROWTH)
    np.testing.assert_allclose(combine_buffers(LAYOUT, [state(0.0, 0.0)] * 3, SENT)[VARIANCE], 1 / GROWTH)


@pytest.mark.parametrize("damage", [state(1e6, 1e12), state(-1e6, 0.0), state(30.0, 1e-12)])
def test_damage_heals(damage: State) -> None:
    """Honest clients go from what they were sent towards the truth: so does the model, within a few rounds."""
    truth, now = state(2.0, 0.5), dict(damage)
    for _ in range(40):
        honest = {name: now[name] + (truth[name] - now[name]) * 0.7 for name in (MEAN, VARIANCE)}
        now = combine_buffers(LAYOUT, [{**honest, COUNTER: now[COUNTER]}] * 3, now)
    np.testing.assert_allclose(now[MEAN], 2.0, rtol=1e-3)
    np.testing.assert_allclose(now[VARIANCE], 0.5, rtol=1e-3)


class TestReference:
    """What the server's own data give."""

    SERVER = Statistics(torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([1.0, 4.0, 1.0]).double())

    def combine(self, *given_: State) -> State:
        return combine_buffers(LAYOUT, given_, SENT, {"1": self.SERVER})

    def test_plausible_clients_are_heard_as_without_it(self) -> None:
        given_ = [state(m, v) for m, v in ((0.5, 1.0), (1.0, 2.0), (0.7, 1.5))]
        without = combine_buffers(LAYOUT, given_, SENT)
        combined = self.combine(*given_)
        assert all(torch.equal(combined[name], without[name]) for name in without)

    @pytest.mark.parametrize("lie", [(1e6, 1.0), (30.0, 1.0), (1.0, 0.0), (1.0, 1e-12), (1.0, 1e6)])
    def test_even_a_majority_of_liars_is_not_heard(self, lie: tuple[float, float]) -> None:
        combined = self.combine(*[state(*lie)] * 4, state(0.5, 1.5))
        np.testing.assert_allclose(combined[MEAN], 0.5)
        np.testing.assert_allclose(combined[VARIANCE], 1.5)

    def test_channel_by_channel(self) -> None:
        far = PLAUSIBLE * 1.5  # only the second channel's deviation makes it plausible
        combined = self.combine(state(far, 2.0), state(0.5, 2.0), state(0.5, 2.0))
        np.testing.assert_allclose(combined[MEAN], [0.5, 0.5, 0.5])
        np.testing.assert_allclose(self.combine(state(far, 2.0))[MEAN], [0.0, far, far])

    def test_where_nobody_is_left_the_server_is_believed(self) -> None:
        for given_ in ([], [state(1e6, 1.0)], [state(0.0, RATIO * 5)]):
            combined = self.combine(*given_)
            np.testing.assert_allclose(combined[MEAN], self.SERVER.mean)
            np.testing.assert_allclose(combined[VARIANCE], self.SERVER.variance)

    def test_what_is_constant_on_the_server_may_vary_elsewhere(self) -> None:
        server = Statistics(torch.zeros(3).double(), torch.tensor([0.0, 1.0, 1.0]).double())
        combined = combine_buffers(LAYOUT, [state(0.1, 1.0)], SENT, {"1": server})
        np.testing.assert_allclose(combined[VARIANCE], 1.0)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_the_median_leaves_nans_out(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(size=(n, 40))
    values[rng.random(values.shape) < 0.3] = np.nan
    expected = [np.median(column[~np.isnan(column)]) if (~np.isnan(column)).any() else np.nan for column in values.T]
    np.testing.assert_allclose(median(torch.tensor(values)), expected)


def test_nobody_heard_leaves_what_was_sent() -> None:
    combined = combine_buffers(LAYOUT, [], SENT)
    assert combined.keys() == SENT.keys()
    assert all(torch.equal(combined[name], SENT[name]) for name in SENT)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_types_and_shapes_stay(n: int) -> None:
    combined = combine_buffers(LAYOUT, states(n), SENT)
    assert list(combined) == [entry.name for entry in LAYOUT.buffers]
    for entry in LAYOUT.buffers:
        assert combined[entry.name].dtype == entry.dtype and tuple(combined[entry.name].shape) == entry.shape


def test_a_buffer_that_is_no_batch_norms() -> None:
    network = nn.Module()
    network.register_buffer("scale", torch.zeros(2))
    network.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
    given_ = [{"scale": torch.full((2,), v), "steps": torch.full((2,), int(v))} for v in (1.0, 2.0, 1e6)]
    combined = combine_buffers(Layout.of(network), given_, dict(network.state_dict()))
    assert combined["scale"].tolist() == [2.0, 2.0] and combined["steps"].tolist() == [2, 2]


class TestBranches:
    """FedRBN: statistics of clean and of adversarial images, each of the clients that used them."""

    def setup_method(self) -> None:
        wanted = Experiment.of({"model.name": "vgg8", "client.objective": "fedrbn"}).network
        network = build_model(wanted, (1, 8, 8), 3, 0)
        self.layout = Layout.of(network)
        self.sent = {entry.name: network.state_dict()[entry.name].clone() for entry in self.layout.buffers}

    def used(self, branch: str, mean: float, variance: float) -> State:
        """A client's state after it used one branch of the first batch norm."""
        found = {name: tensor.clone() for name, tensor in self.sent.items()}
        found[f"1.{branch}.running_mean"].fill_(mean)
        found[f"1.{branch}.running_var"].fill_(variance)
        found[f"1.{branch}.num_batches_tracked"] += 5
        return found

    def test_each_is_of_those_who_used_it(self) -> None:
        clean, adversarial = [self.used("clean", 0.5, 1.0)] * 4, [self.used("adversarial", 0.8, 1.5)] * 2
        combined = combine_buffers(self.layout, [*clean, *adversarial], self.sent)
        np.testing.assert_allclose(combined["1.clean.running_mean"], 0.5)
        np.testing.assert_allclose(combined["1.adversarial.running_mean"], 0.8, rtol=1e-6)
        np.testing.assert_allclose(combined["1.adversarial.running_var"], 1.5)

    @pytest.mark.parametrize(("mean", "variance"), [(30.0, 1.0), (1e6, 1.0), (0.5, 1e6), (0.5, 0.0)])
    @pytest.mark.parametrize("branch", ["clean", "adversarial"])
    def test_a_liar_alone_in_a_branch_is_judged_by_the_other(self, branch: str, mean: float, variance: float) -> None:
        other = {"clean": "adversarial", "adversarial": "clean"}[branch]
        honest = [self.used(other, 0.5, 1.0) for _ in range(4)]
        combined = combine_buffers(self.layout, [*honest, self.used(branch, mean, variance)], self.sent)
        for name in ("clean", "adversarial"):
            np.testing.assert_allclose(combined[f"1.{name}.running_mean"], 0.5)
            np.testing.assert_allclose(combined[f"1.{name}.running_var"], 1.0)

    def test_one_that_nobody_used_stays_as_it_was_sent(self) -> None:
        combined = combine_buffers(self.layout, [self.used("adversarial", 0.5, 2.0)] * 3, self.sent)
        assert torch.equal(combined["1.clean.running_mean"], self.sent["1.clean.running_mean"])
        assert torch.equal(combined["1.clean.running_var"], self.sent["1.clean.running_var"])


def test_a_variance_of_zero_grows_back() -> None:
    now = state(0.0, 0.0)
    for _ in range(8):
        now = combine_buffers(LAYOUT, [state(0.0, 1.0)] * 3, now)
    np.testing.assert_allclose(now[VARIANCE], 1.0)
    assert SMALLEST * GROWTH**8 > 1
