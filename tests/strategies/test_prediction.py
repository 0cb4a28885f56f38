"""FLDetector: its parts against their definitions, and what it remembers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies.blocks import block
from thistle.strategies.aggregators.prediction import hessian_product, is_split, prediction_errors, upper_cluster
from thistle.strategies.memory.windows import Windows
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.rules.fldetector import DETECTED, Detection

D = 12


def ref_bfgs(moves: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """B by the textbook's updates, one pair after the other, from σI."""
    sigma = changes[-1] @ moves[-1] / (moves[-1] @ moves[-1])
    b = sigma * np.eye(moves.shape[1])
    for s, y in zip(moves, changes, strict=True):
        bs = b @ s
        b = b - np.outer(bs, bs) / (s @ bs) + np.outer(y, y) / (y @ s)
    return np.asarray(b)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_product_is_that_of_bfgs(count: int, sign: float) -> None:
    """Of a convex loss's gradients, and of updates, which go the other way."""
    draw = np.random.default_rng(count)
    root = draw.normal(size=(D, D))
    moves = draw.normal(size=(count, D))
    changes = sign * moves @ (root @ root.T + np.eye(D))
    v = draw.normal(size=D)
    found = hessian_product(*(torch.from_numpy(each) for each in (moves, changes, v)))
    np.testing.assert_allclose(found, ref_bfgs(moves, changes) @ v, rtol=1e-6, atol=1e-8)


def test_a_model_that_did_not_move_predicts_no_change() -> None:
    still = torch.zeros(2, D)
    assert not hessian_product(still, block(2, D), torch.ones(D)).any()
    moves, changes = torch.cat([still, block(2, D)]), torch.cat([block(2, D, 5), -block(2, D)])
    expected = hessian_product(moves[2:], changes[2:], torch.ones(D))
    torch.testing.assert_close(hessian_product(moves, changes, torch.ones(D)), expected)


def test_errors() -> None:
    now, last, product = block(5, D), block(5, D, 1), block(1, D, 2)[0]
    expected = [np.sqrt(((b + product - a).double().numpy() ** 2).sum()) for a, b in zip(now, last, strict=True)]
    np.testing.assert_allclose(prediction_errors(zip(now, last, strict=True), product), expected, rtol=1e-5)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9, unique=True))
@settings(max_examples=100, deadline=None)
def test_two_means_are_the_best_of_all_splits(values: list[float]) -> None:
    x = np.array(values)
    splits = [np.array(one) for one in itertools.product([False, True], repeat=len(x)) if 0 < sum(one) < len(x)]
    best = min(sum(((part - part.mean()) ** 2).sum() for part in (x[one], x[~one])) for one in splits)
    upper, within = upper_cluster(x)
    assert within == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert upper.any() and not upper.all() and x[upper].min() > x[~upper].max()


def test_the_gap_statistic_tells_two_clusters_from_one() -> None:
    draw = np.random.default_rng(0)
    split = [is_split(np.concatenate([draw.normal(1, 0.1, 35), draw.normal(3, 0.1, 15)]), draw) for _ in range(50)]
    whole = [is_split(draw.normal(1, 0.1, 50), draw) for _ in range(50)]
    assert all(split) and sum(whole) <= 2
    assert not is_split(np.ones(9), draw) and not is_split(np.array([1.0, 5.0, 9.0, 9.5]), draw)


def test_windows() -> None:
    windows, memory = Windows("w", 2), dict[str, np.ndarray]()
    for clients, values in ([5, 2**63 + 1], [1.0, 10.0]), ([5], [3.0]), ([5, 1], [7.0, 4.0]):
        memory |= windows.after(memory, clients, np.array(values))
    assert windows.ids(memory).tolist() == [1, 5, 2**63 + 1]
    assert windows.means(memory).tolist() == [4.0, 5.0, 10.0]
    memory |= windows.empty()
    assert not len(windows.ids(memory)) and not len(windows.means(memory))


class Course:
    """Rounds of honest clients on a quadratic loss, each with an offset, and liars whose updates jump about."""

    def __init__(self, window: int = 3) -> None:
        self.step, self.memory = Detection(window, seed=0), dict[str, np.ndarray]()
        self.model, self.number = torch.zeros(D), 0
        self.slopes = torch.linspace(0.05, 0.5, D)

    def play(self, ids: list[int], liars: set[int] = frozenset()) -> Progress:  # type: ignore[assignment]
        self.number += 1
        rows = torch.stack([self._update(client, client in liars) for client in ids])
        prior = torch.full((len(ids),), 1 / len(ids), dtype=torch.float64)
        round = Round(self.number, tuple(ids), prior, self.model, 0.1, None, self.memory)
        done = self.step(round, Progress.begin(rows))
        self.memory |= done.notes
        self.model = self.model + done.step
        return done

    def _update(self, client: int, lies: bool) -> Tensor:
        goal = 1 + 0.1 * block(1, D, client, 0.0)[0]
        honest = self.slopes * (goal - self.model)
        return block(1, D, 1000 * self.number + client, 0.0)[0] if lies else honest + 0.02 * self._noise(client)

    def _noise(self, client: int) -> Tensor:
        return block(1, D, 7000 + 1000 * self.number + client, 0.0)[0]


EVERYBODY, LIARS = list(range(20, 40)), {21, 25, 26, 30, 33, 39}


def test_liars_are_found_when_the_window_is_full_and_stay_out() -> None:
    course = Course()
    seen = [course.play(EVERYBODY, LIARS) for _ in range(8)]
    assert all(done.kept.all() for done in seen[:4]), "two rounds for the first move, three for the window"
    for done in seen[4:]:
        out = {EVERYBODY[row] for row, name in done.dropped_by.items() if name == "fldetector"}
        assert out == LIARS
        assert done.weights is not None and not done.weights[~done.kept].any()
    assert DETECTED.of(course.memory, EVERYBODY).sum() == len(LIARS)
    scores = seen[4].scores
    assert scores is not None and scores[~seen[4].kept].min() > scores[seen[4].kept].max()


def test_honest_clients_stay_in() -> None:
    course = Course()
    assert all(course.play(EVERYBODY).kept.all() for _ in range(12))


def test_who_was_not_there_in_the_last_round_is_not_judged() -> None:
    course = Course()
    for ids in ([1, 2, 3], [2, 3, 4]):
        course.play(ids)
    done = course.play([3, 4, 5])
    assert done.scores is not None and torch.isnan(done.scores).tolist() == [False, False, True]


def test_the_memory_is_bounded() -> None:
    course = Course(window=2)
    sizes = []
    for number in range(10):
        course.play([number * 3 + k for k in range(3)])
        sizes.append({name: array.shape for name, array in course.memory.items()})
    assert sizes[-1] == sizes[4] and sizes[-1]["fldetector.moves"] == (2, D) and sizes[-1]["fldetector.sent"] == (3, D)


def test_the_order_of_clients_does_not_matter() -> None:
    """Ids come sorted, but which client has which id is chance."""

    def play(ids: list[int]) -> Any:
        course = Course()
        return [course.play(ids, LIARS) for _ in range(6)]

    for plain, turned in zip(play(EVERYBODY), play(EVERYBODY[::-1]), strict=True):
        assert torch.equal(plain.kept, turned.kept.flip(0))
        torch.testing.assert_close(plain.step, turned.step)


def test_where_all_are_out_the_model_stays() -> None:
    course = Course()
    course.memory |= DETECTED.after({}, [1, 2], np.ones(2))
    done = course.play([1, 2])
    assert not done.kept.any() and not done.step.any() and done.weights is not None and not done.weights.any()


@pytest.mark.parametrize("n", [1, 2])
def test_few_clients_and_zero_updates(n: int) -> None:
    course = Course()
    course.slopes = torch.zeros(D)
    for _ in range(8):
        done = course.play(list(range(n)))
        assert done.kept.all() and torch.isfinite(done.step).all()
