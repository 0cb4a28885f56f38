"""The steps after the filter: who is heard, how far the model moves, and what is remembered."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout
from thistle.strategies import aggregators, steps
from thistle.strategies.aggregators import Aggregate
from thistle.strategies.build import make_strategy, resolve
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.rules.centered_clipping import ClipAroundLast
from thistle.strategies.rules.fltrust import TrustByCosine
from thistle.strategies.rules.foolsgold import OneVotePerDirection
from thistle.strategies.steps.filters import AngleFilter, LossFilter, ZenoFilter

N, D, LR = 12, 9, 0.5
RULES = ["fedavg", "rfa", "median", "trimmed-mean", "krum", "multi-krum", "bulyan", "meamed", "mda", "caf", "rlr"]
BY_COORDINATE = ("median", "trimmed-mean", "bulyan", "meamed", "rlr")
SPECIAL = ["norm-clipping", "centered-clipping", "fltrust", "foolsgold"]
KEPT = torch.tensor([True, False, True, True, True, True, False, True, True, True, False, True])


class Pupil:
    """A server that always learns the same; it writes down how it was asked."""

    def __init__(self, lesson: Tensor, gradient: Tensor | None = None) -> None:
        self.lesson, self.known = lesson, gradient
        self.asked: list[tuple[Tensor, float]] = []

    def gradient(self) -> Tensor:
        assert self.known is not None
        return self.known

    def learn(self, start: Tensor, rate: float) -> Tensor:
        self.asked.append((start.clone(), rate))
        return start + self.lesson


def built(**more: Any) -> list[Step]:
    """The steps that these settings ask for."""
    chosen = {"client.per-round": N, **{f"strategy.{key}": value for key, value in more.items()}}
    task: Any = SimpleNamespace(server_images=None, classes=10)
    strategy = make_strategy(resolve(Experiment.of(chosen)), task, Layout.of(nn.Linear(2, 2)))
    assert isinstance(strategy, Pipeline)
    return list(strategy.plan)


def aggregator(name: str) -> Step:
    (step, *_) = built(name=name, **({"tau": 1.0} if name == "centered-clipping" else {}))
    return step


def a_round(n: int = N, number: int = 1, server: Pupil | None = None, **more: Any) -> Round:
    prior = torch.full((n,), 1 / n, dtype=torch.float64)
    known = {"prior": prior, "model": torch.arange(D, dtype=torch.float32), "lr": LR, **more}
    return Round(number=number, ids=tuple(range(10, 10 + n)), server=server or Pupil(torch.ones(D)), **known)


def updates(n: int = N, seed: int = 0) -> Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed)) + 0.5


def begin(block: Tensor, kept: Tensor | None = None) -> Progress:
    progress = Progress.begin(block.clone())
    return progress if kept is None else progress.drop(~kept, "filter")


# ---- aggregates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES + SPECIAL)
def test_only_the_kept_are_aggregated(name: str) -> None:
    spoilt = updates()
    spoilt[~KEPT] = 1e20
    some = aggregator(name)(a_round(), begin(spoilt, KEPT))
    alone = aggregator(name)(a_round(int(KEPT.sum())), begin(updates()[KEPT]))
    assert some.weights is not None and alone.weights is not None
    np.testing.assert_allclose(some.step, alone.step, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(some.weights[KEPT], alone.weights, rtol=1e-9)
    assert not some.weights[~KEPT].any() and some.weights.dtype == torch.float64
    assert all(some.dropped_by[row] == "filter" for row in (~KEPT).nonzero().flatten().tolist())
    assert some.coordinatewise == (name in BY_COORDINATE)


def test_the_mean_of_the_kept_follows_their_prior() -> None:
    prior = torch.arange(1, N + 1, dtype=torch.float64)
    progress = aggregator("fedavg")(a_round(prior=prior / prior.sum()), begin(updates(), KEPT))
    share = np.where(KEPT, prior, 0) / float(prior[KEPT].sum())
    np.testing.assert_allclose(progress.weights, share, rtol=1e-12)
    np.testing.assert_allclose(progress.step, share @ updates().double().numpy(), rtol=1e-5, atol=1e-6)


def test_medians_and_krum_do_not_believe_a_prior() -> None:
    prior = torch.tensor([0.9] + [0.1 / (N - 1)] * (N - 1), dtype=torch.float64)
    for name in ("median", "trimmed-mean", "krum", "multi-krum", "bulyan", "centered-clipping", "fltrust", "foolsgold"):
        told = aggregator(name)(a_round(prior=prior), begin(updates()))
        assert torch.equal(told.step, aggregator(name)(a_round(), begin(updates())).step), name


@pytest.mark.parametrize("name", RULES + SPECIAL)
def test_nobody_left_leaves_the_model(name: str) -> None:
    progress = aggregator(name)(a_round(), begin(updates(), torch.zeros(N, dtype=torch.bool)))
    assert not progress.step.any() and progress.weights is not None and not progress.weights.any()
    assert not progress.notes


@pytest.mark.parametrize("step", [steps.NearestNeighbourMixing(2), steps.Bucketing(0)])
def test_nobody_left_to_mix(step: Step) -> None:
    progress = begin(updates(), torch.zeros(N, dtype=torch.bool))
    assert step(a_round(), progress) is progress


@pytest.mark.parametrize("empty", [AngleFilter(1.0), ZenoFilter(0.1, 0.0)])
def test_nobody_passes_and_the_server_still_learns(empty: Step) -> None:
    gradient = torch.ones(D)
    pupil = Pupil(torch.full((D,), 0.1), gradient)
    given_ = a_round(server=pupil)
    progress = begin(gradient.repeat(N, 1))
    for step in (empty, aggregator("rfa"), steps.Clip(1.0), steps.ServerLearning(0.5, 1.0)):
        progress = step(given_, progress)
    assert progress.metrics["filter.empty"] == 1.0
    assert torch.equal(pupil.asked[0][0], given_.model)
    np.testing.assert_allclose(progress.step, pupil.lesson, atol=1e-6)


def test_a_negligible_weight_is_no_filter_but_is_on_record() -> None:
    weights = torch.tensor([0.5, 0.4, 0.0, 0.024, 0.076], dtype=torch.float64)
    rule = steps.Aggregation("judge", lambda block, prior: Aggregate(block[0], weights[: len(block)]))
    progress = rule(a_round(5), begin(updates(5)))
    assert progress.kept.all() and not progress.dropped_by and progress.weighed_by == "judge"
    assert progress.mattered().tolist() == [True, True, False, True, True], "a tenth of a fifth is the limit"
    progress = rule(a_round(4), begin(updates(4)))
    assert progress.faint == {2: "weight 0 of 0.25", 3: "weight 0.024 of 0.25"}, "a tenth of a quarter"
    assert torch.equal(progress.weights, weights[:4]), "what they had stays on record"


def test_an_outlier_has_next_to_no_weight_in_the_geometric_median() -> None:
    block = updates()
    block[3] += 1e4
    progress = aggregator("rfa")(a_round(), begin(block))
    assert list(progress.faint) == [3] and progress.weighed_by == "rfa" and not progress.dropped_by


def test_krum_filters_all_but_one() -> None:
    progress = aggregator("krum")(a_round(), begin(updates()))
    assert len(progress.dropped_by) == N - 1 and set(progress.dropped_by.values()) == {"krum"}
    assert all(
        re.fullmatch(r"not selected: score [\d.]+ above the cut at [\d.]+", one) for one in progress.reasons.values()
    )
    assert not progress.faint
    (chosen,) = progress.kept.nonzero().flatten().tolist()
    assert torch.equal(progress.step, updates()[chosen])


# ---- pre-steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["fedavg", "rfa", "median", "krum", "centered-clipping", "norm-clipping", "caf", "mda"]
)
@pytest.mark.parametrize("pre", [steps.NearestNeighbourMixing(1), steps.Bucketing(0)])
def test_mixed_rows_take_the_updates_place(pre: Step, name: str) -> None:
    spoilt = updates()
    spoilt[~KEPT] = 1e20
    progress = pre(a_round(), begin(spoilt, KEPT))
    assert progress.mixing is not None and progress.mixing.shape[1] == int(KEPT.sum())
    np.testing.assert_allclose(progress.mixing.sum(dim=1), 1.0)
    mixed = (progress.mixing @ updates()[KEPT].double()).float()
    after = aggregator(name)(a_round(), progress)
    direct = aggregator(name)(a_round(len(mixed)), begin(mixed))
    np.testing.assert_allclose(after.step, direct.step, rtol=1e-4, atol=1e-5)
    assert after.weights is not None and not after.weights[~KEPT].any()


def test_buckets_are_a_function_of_seed_and_round() -> None:
    def buckets(seed: int, number: int) -> Tensor:
        mixing = steps.Bucketing(seed)(a_round(number=number), begin(updates())).mixing
        assert mixing is not None
        return mixing

    assert torch.equal(buckets(0, 1), buckets(0, 1))
    assert not torch.equal(buckets(0, 1), buckets(0, 2)) and not torch.equal(buckets(0, 1), buckets(1, 1))


def test_a_single_client_is_a_bucket() -> None:
    kept = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor([4]), True)
    progress = aggregator("fedavg")(a_round(), steps.Bucketing(0)(a_round(), begin(updates(), kept)))
    assert torch.equal(progress.step, updates()[4])


# ---- rules with a memory or a reference ------------------------------------------------------------------------


def test_centered_clipping_starts_at_the_last_aggregate() -> None:
    block, last = updates().double().numpy(), np.linspace(-1, 1, D)

    def by_hand(start: np.ndarray) -> np.ndarray:
        moves = [row - start for row in block]
        return start + np.mean([move * min(1, 0.7 / np.linalg.norm(move)) for move in moves], axis=0)

    first = ClipAroundLast(0.7)(a_round(), begin(updates()))
    np.testing.assert_allclose(first.step, by_hand(np.zeros(D)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(first.notes["centre"], first.step)
    later = ClipAroundLast(0.7)(a_round(memory={"centre": last.astype(np.float32)}), begin(updates()))
    np.testing.assert_allclose(later.step, by_hand(last), rtol=1e-5, atol=1e-6)


def test_fltrust_trusts_who_moves_like_the_server() -> None:
    lesson = torch.linspace(0.1, 0.9, D)
    pupil = Pupil(lesson)
    block = torch.cat([updates(3), -updates(2), torch.zeros(1, D)])
    progress = TrustByCosine()(a_round(6, server=pupil), begin(block))
    ((start, rate),) = pupil.asked
    assert torch.equal(start, a_round().model) and rate == LR
    x, r = block.double().numpy(), lesson.double().numpy()
    lengths = np.linalg.norm(x, axis=1)
    cosines = np.array([row @ r / (a * np.linalg.norm(r)) if a else 0.0 for row, a in zip(x, lengths, strict=True)])
    trust = np.maximum(cosines, 0)
    expected = sum(t * np.linalg.norm(r) / a * row for t, a, row in zip(trust, lengths, x, strict=True) if a)
    np.testing.assert_allclose(progress.step, expected / trust.sum(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(progress.weights, trust / trust.sum(), rtol=1e-4, atol=1e-6)
    assert {3, 4, 5} <= progress.dropped_by.keys() and set(progress.dropped_by.values()) == {"fltrust"}


def test_nobody_trusted_stands_still() -> None:
    progress = TrustByCosine()(a_round(3, server=Pupil(torch.ones(D))), begin(-torch.ones(3, D)))
    assert not progress.step.any() and not progress.kept.any()


def test_foolsgold_adds_up_what_each_client_did() -> None:
    kept = torch.tensor([True, True, False, True])
    memory = {"foolsgold/11": np.arange(D, dtype=np.float32), "foolsgold/77": np.ones(D, dtype=np.float32)}
    progress = OneVotePerDirection()(a_round(4, memory=memory), begin(updates(4), kept))
    assert progress.notes.keys() == {"foolsgold/10", "foolsgold/11", "foolsgold/13"}
    np.testing.assert_array_equal(progress.notes["foolsgold/10"], updates(4)[0])
    np.testing.assert_allclose(progress.notes["foolsgold/11"], updates(4)[1] + torch.arange(D))
    history = torch.stack([torch.from_numpy(progress.notes[f"foolsgold/{client}"]) for client in (10, 11, 13)])
    weights = aggregators.foolsgold(aggregators.gram(history, centred=False))
    assert progress.weights is not None
    np.testing.assert_allclose(progress.weights[kept], weights / weights.sum())
    np.testing.assert_allclose(progress.step, weights @ updates(4)[kept].double(), rtol=1e-5, atol=1e-6)


def test_sybils_share_one_vote_and_sums_are_their_own() -> None:
    alike = begin(updates(1).repeat(3, 1))
    progress = OneVotePerDirection()(a_round(3), alike)
    assert not progress.step.any() and not progress.mattered().any() and progress.weighed_by == "foolsgold"
    assert progress.kept.all() and not progress.heard().any(), "no one's buffers either"
    assert all(note.base is None for note in progress.notes.values()), "one client's sum must not hold a whole round"


# ---- rate, clip, server learning -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9), st.floats(1e-3, 1e4))
def test_clip_by_definition(values: list[float], tau: float) -> None:
    block = torch.zeros(1, len(values))
    progress = steps.Clip(tau)(a_round(1), replace(begin(block), step=torch.tensor(values)))
    norm = float(np.linalg.norm(values))
    expected = np.array(values) * (min(1.0, tau / norm) if norm else 1.0)
    np.testing.assert_allclose(progress.step, expected, rtol=1e-5, atol=1e-30)
    if norm <= tau:
        assert progress.step.tolist() == torch.tensor(values).tolist()


def test_the_order_of_the_steps() -> None:
    wanted = {"name": "rofsl", "pre": "nnm", "server-lr": 3.0}
    kinds = [type(step) for step in built(**wanted)]
    assert kinds == [
        LossFilter,
        steps.NearestNeighbourMixing,
        steps.Aggregation,
        steps.ServerRate,
        steps.Clip,
        steps.ServerLearning,
    ]


def test_the_rate_comes_before_the_clip() -> None:
    block = torch.zeros(N, D)
    block[:, 0] = 0.5
    progress = begin(block)
    for step in built(name="fedavg", tau=1.0, **{"server-lr": 4.0}):
        progress = step(a_round(), progress)
    assert float(progress.step.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("tau", [0.0, 0.3, 100.0])
def test_server_learning_from_where_the_aggregate_led(tau: float) -> None:
    lesson = torch.linspace(-1, 1, D)
    pupil = Pupil(lesson)
    given_, step = a_round(server=pupil), torch.linspace(0.2, 0.4, D)
    after = steps.ServerLearning(0.2, tau)(given_, replace(begin(updates()), step=step))
    ((start, rate),) = pupil.asked
    assert torch.equal(start, given_.model + step) and rate == pytest.approx(0.2 * LR)
    length = float(lesson.norm())
    factor = min(1.0, tau / length) if tau else 1.0
    np.testing.assert_allclose(after.step, step + factor * lesson, atol=1e-5)
    assert after.metrics["server.step"] == pytest.approx(factor * length, rel=1e-5)
