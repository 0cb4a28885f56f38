"""Each filter against its definition, written out naively in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.filters import AngleFilter, LossFilter, ZenoFilter, loss_scores

LR = 0.25
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**31))
AXES = st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 2)), min_size=1, max_size=12)


class Known:
    """A server whose gradient is known; it cannot learn."""

    def __init__(self, gradient: Tensor) -> None:
        self.known, self.asked = gradient, 0

    def gradient(self) -> Tensor:
        self.asked += 1
        return self.known

    def learn(self, start: Tensor, rate: float) -> Tensor:
        raise AssertionError("no filter learns")


def apply(step: Step, updates: Tensor, gradient: Tensor) -> Progress:
    n, d = updates.shape
    prior = torch.full((n,), 1 / n, dtype=torch.float64)
    given_ = Round(1, tuple(range(n)), prior, torch.zeros(d), LR, Known(gradient))
    return step(given_, Progress.begin(updates.clone()))


def drawn(n: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """n updates, the first of which is zero, and a gradient."""
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(n, d, generator=generator)
    updates[0] = 0
    return updates, torch.randn(d, generator=generator)


def dropped(progress: Progress) -> list[int]:
    return (~progress.kept).nonzero().flatten().tolist()


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def ref_cosine(update: list[float], gradient: list[float]) -> float:
    length = math.sqrt(dot(update, update)) * math.sqrt(dot(gradient, gradient))
    return -dot(update, gradient) / length if length else 0.0


def ref_loss(update: list[float], gradient: list[float], rho: float) -> float:
    return -dot(update, gradient) - rho * dot(update, update)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(-1, 1))
def test_the_angle_filter_keeps_what_points_downhill(shape: tuple[int, int, int], angle: float) -> None:
    updates, gradient = drawn(*shape)
    wanted = [ref_cosine(row, gradient.tolist()) for row in updates.tolist()]
    assume(all(abs(cosine - angle) > 1e-5 for cosine in wanted))
    progress = apply(AngleFilter(angle), updates, gradient)
    np.testing.assert_allclose(progress.scores, wanted, atol=1e-6)
    assert dropped(progress) == [row for row, cosine in enumerate(wanted) if cosine < angle]
    assert set(progress.dropped_by.values()) <= {"angle"} and sorted(progress.dropped_by) == dropped(progress)


def test_a_zero_update_has_cosine_zero() -> None:
    updates, gradient = torch.zeros(1, 3), torch.tensor([1.0, 2.0, 3.0])
    assert apply(AngleFilter(0.0), updates, gradient).scores.tolist() == [0.0]
    assert apply(AngleFilter(0.0), updates, gradient).kept.all()
    assert not apply(AngleFilter(1e-9), updates, gradient).kept.any()


def test_an_angle_of_minus_one_keeps_all() -> None:
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    scales = torch.linspace(0.01, 3, 200)  # of some of these, rounding makes the cosine less than −1
    progress = apply(AngleFilter(-1.0), scales[:, None] * gradient, gradient)
    assert progress.kept.all() and float(progress.scores.min()) == -1.0


def test_a_zero_gradient_tells_nothing() -> None:
    progress = apply(AngleFilter(0.0), torch.randn(4, 3), torch.zeros(3))
    assert progress.scores.tolist() == [0.0] * 4 and progress.kept.all()


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(0, 2), st.integers(0, 15))
def test_the_loss_filter_drops_the_lowest(shape: tuple[int, int, int], rho: float, sixteenths: int) -> None:
    updates, gradient = drawn(*shape)
    n, theta = len(updates), sixteenths / 16
    wanted = [ref_loss(row, gradient.tolist(), rho) for row in updates.tolist()]
    ordered = sorted(wanted)
    assume(all(b - a > 1e-4 for a, b in pairwise(ordered)))
    progress = apply(LossFilter(rho, theta), updates, gradient)
    np.testing.assert_allclose(progress.scores, wanted, rtol=1e-5, atol=1e-5)
    lowest = sorted(range(n), key=lambda row: wanted[row])[: sixteenths * n // 16]
    assert dropped(progress) == sorted(lowest)
    assert progress.dropped_by == dict.fromkeys(sorted(lowest), "loss")


@settings(max_examples=80, deadline=None)
@given(AXES, st.integers(0, 7))
def test_ties_are_broken_by_client_id(rows: list[tuple[int, int]], eighths: int) -> None:
    updates, gradient = torch.zeros(len(rows), 3), torch.tensor([1.0, -1.0, 0.0])
    for update, (axis, length) in zip(updates, rows, strict=True):  # along an axis: scores are exact, so they tie
        update[axis] = length
    scores = [ref_loss(update, gradient.tolist(), 0.5) for update in updates.tolist()]
    lowest = sorted(range(len(rows)), key=lambda row: (scores[row], row))[: eighths * len(rows) // 8]
    assert dropped(apply(LossFilter(0.5, eighths / 8), updates, gradient)) == sorted(lowest)


@pytest.mark.parametrize(("theta", "n", "count"), [(0.5, 5, 2), (0.5, 4, 2), (0.0, 4, 0), (0.9, 1, 0), (0.3, 10, 3)])
def test_half_of_five_is_two(theta: float, n: int, count: int) -> None:
    progress = apply(LossFilter(0.1, theta), torch.randn(n, 3), torch.ones(3))
    assert int((~progress.kept).sum()) == count


def test_a_loss_score_is_what_the_loss_gains_less_the_length() -> None:
    updates = torch.tensor([[-1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    assert loss_scores(updates, torch.tensor([2.0, 0.0]), 0.5).tolist() == [1.5, -6.0, -4.5]


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(0, 2), st.floats(0, 1))
def test_zeno_rescales_then_bounds(shape: tuple[int, int, int], rho: float, epsilon: float) -> None:
    updates, gradient = drawn(*shape)
    g = gradient.double().numpy()
    length = float(np.linalg.norm(g))
    assume(length > 1e-2)
    rescaled = np.zeros(updates.shape)
    for row, update in enumerate(updates.double().numpy()):
        if update.any():
            rescaled[row] = update / np.linalg.norm(update) * LR * length
    wanted = [ref_loss(row.tolist(), g.tolist(), rho) for row in rescaled]
    bound = -epsilon * LR * length**2
    assume(all(abs(score - bound) > 1e-4 * length**2 for score in wanted[1:]))
    progress = apply(ZenoFilter(rho, epsilon), updates, gradient)
    np.testing.assert_allclose(progress.updates, rescaled, rtol=1e-5, atol=1e-6 * length)
    np.testing.assert_allclose(progress.scores, wanted, rtol=1e-5, atol=1e-6 * length**2)
    assert dropped(progress) == [row for row, score in enumerate(wanted) if score < bound]
    assert set(progress.dropped_by.values()) <= {"zeno"}


def test_zeno_keeps_what_meets_the_bound_exactly() -> None:
    updates = torch.tensor([[0.0, 5.0], [0.0, 0.0], [7.0, 0.0]])
    progress = apply(ZenoFilter(0.0, 0.0), updates, torch.tensor([4.0, 0.0]))
    assert progress.scores.tolist() == [0.0, 0.0, -4.0]
    assert progress.kept.tolist() == [True, True, False]
    assert progress.updates.tolist() == [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("step", [AngleFilter(0.5), ZenoFilter(0.1, 0.1)])
def test_an_empty_round_is_said(step: Step) -> None:
    gradient = torch.tensor([1.0, 1.0])
    none = apply(step, gradient.repeat(3, 1), gradient)
    assert none.metrics == {"filter.empty": 1.0} and not none.kept.any()
    some = apply(step, torch.stack([gradient, -gradient]), gradient)
    assert some.metrics == {"filter.empty": 0.0} and some.kept.tolist() == [False, True]


def test_the_gradient_is_computed_once_and_only_where_asked() -> None:
    server = Known(torch.ones(2))
    given_ = Round(1, (0, 1), torch.full((2,), 0.5, dtype=torch.float64), torch.zeros(2), LR, server)
    assert server.asked == 0
    progress = Progress.begin(torch.randn(2, 2))
    for step in (AngleFilter(-1.0), LossFilter(0.1, 0.0), ZenoFilter(0.1, 10.0)):
        progress = step(given_, progress)
    assert server.asked == 1


def test_who_is_gone_stays_gone_and_keeps_its_first_name() -> None:
    progress = Progress.begin(torch.zeros(3, 2)).drop(torch.tensor([True, False, False]), "angle")
    progress = progress.drop(torch.tensor([True, True, False]), "loss")
    assert progress.dropped_by == {0: "angle", 1: "loss"} and progress.kept.tolist() == [False, False, True]


def test_a_filter_says_its_cut_and_why_in_words() -> None:
    gradient = torch.tensor([1.0, 0.0])
    updates = torch.tensor([[0.31, 0.0], [-0.02, 0.0], [-0.5, 0.0], [0.3105, 0.0]])
    progress = apply(LossFilter(0.0, 0.5), updates, gradient)
    assert progress.thresholds.tolist() == pytest.approx([0.02] * 4)
    assert progress.reasons == {0: "score −0.31 below the cut at 0.02", 3: "score −0.31 below the cut at 0.02"}
    near = apply(LossFilter(0.0, 0.25), updates, gradient)
    assert near.reasons == {3: "score −0.3105 below the cut at −0.31"}, "as many digits as tell them apart"
    assert apply(LossFilter(0.0, 0.0), updates, gradient).thresholds.isnan().all(), "it keeps everybody"
    angle = apply(AngleFilter(0.5), updates, gradient)
    assert angle.reasons[0] == "score −1 below the cut at 0.5" and set(angle.thresholds.tolist()) == {0.5}
    zeno = apply(ZenoFilter(0.0, 0.5), updates, gradient)
    assert zeno.reasons.keys() == {0, 3} and zeno.thresholds.tolist() == pytest.approx([-0.5 * LR] * 4)


def test_equal_scores_at_the_cut_are_said_to_be() -> None:
    progress = apply(LossFilter(0.0, 0.5), torch.tensor([[-1.0, 0.0]]).repeat(4, 1), torch.tensor([1.0, 0.0]))
    assert progress.reasons == dict.fromkeys((0, 1), "score 1 at the cut")


def test_who_was_dropped_before_keeps_the_score_it_was_dropped_for() -> None:
    updates, gradient = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-2.0, 0.0]]), torch.tensor([1.0, 0.0])
    progress = apply(AngleFilter(0.0), updates, gradient)
    prior = torch.full((3,), 1 / 3, dtype=torch.float64)
    progress = LossFilter(0.0, 0.67)(Round(1, (0, 1, 2), prior, torch.zeros(2), LR, Known(gradient)), progress)
    assert progress.dropped_by == {0: "angle", 1: "loss"}
    assert progress.scores.tolist() == [-1.0, 1.0, 2.0] and progress.thresholds.tolist() == [0.0, 2.0, 2.0]
    assert progress.reasons == {0: "score −1 below the cut at 0", 1: "score 1 below the cut at 2"}
