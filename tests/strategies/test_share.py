"""θ = "auto": nobody is dropped without reason, attackers are, and what was seen is remembered."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.share import EVIDENCE, MOST, SPLIT, MaliciousShare, explained, relative


def judge(scores: list[float], ids: list[int], memory: dict[str, np.ndarray]) -> tuple[list[bool], Progress]:
    n = len(scores)
    prior = torch.full((n,), 1 / n, dtype=torch.float64)
    round = Round(1, tuple(ids), prior, torch.zeros(1), 0.1, None, memory)
    begun = Progress.begin(torch.zeros(n, 1))
    drop, why, progress = MaliciousShare().judge(round, begun, torch.tensor(scores).double())
    assert all("spreads below the best quarter" in why(row) for row in drop.nonzero().flatten().tolist())
    return drop.tolist(), progress


def rounds_of(make: object, count: int) -> tuple[list[list[bool]], dict[str, np.ndarray]]:
    memory: dict[str, np.ndarray] = {}
    drops = []
    for number in range(count):
        drop, progress = judge(make(number), list(range(10)), memory)  # type: ignore[operator]
        memory |= progress.notes
        drops.append(drop)
    return drops, memory


def test_two_clusters_are_explained_and_one_is_not() -> None:
    rng = np.random.default_rng(0)
    one = [explained(torch.from_numpy(rng.normal(size=10))) for _ in range(200)]
    two = [explained(torch.from_numpy(np.r_[rng.normal(size=4), rng.normal(8, 1, 6)])) for _ in range(200)]
    assert np.mean(one) < 0.75
    assert np.mean(two) > 0.9
    assert explained(torch.zeros(5)) == explained(torch.ones(1)) == 0.0


def test_attackers_are_dropped_and_few_honest_clients_with_them() -> None:
    rng = np.random.default_rng(1)
    drops, _ = rounds_of(lambda _: [*(-rng.uniform(2, 9, 4)), *(-rng.uniform(0.04, 0.09, 6))], 30)
    share = np.mean(drops[5:], axis=0)
    assert (share[:4] > 0.9).all() and (share[4:] < 0.1).all()


def test_without_an_attack_almost_nobody_is_dropped() -> None:
    rng = np.random.default_rng(2)
    drops, memory = rounds_of(lambda _: list(-(rng.normal(0.4, 0.1, 10) ** 2)), 60)
    assert np.mean(drops[30:]) < 0.1
    assert float(memory[SPLIT][0]) < 0.79


def test_a_bad_past_counts() -> None:
    memory = {SPLIT: np.array([0.95])} | EVIDENCE.after({}, range(10), np.r_[-9.0, np.zeros(9)])
    scores = [-0.20, -0.21, -0.22, -0.20, -0.19, -0.21, -0.22, -0.20, -0.19, -0.2]
    drop, _ = judge(scores, list(range(10)), memory)
    assert drop[0]
    fresh, _ = judge(scores, list(range(10)), {SPLIT: np.array([0.95])})
    assert not fresh[0]


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=30))
def test_any_scores_are_bearable(scores: list[float]) -> None:
    drop, progress = judge(scores, list(range(len(scores))), {})
    assert sum(drop) <= MOST * len(scores)
    assert np.isfinite(EVIDENCE.of(progress.notes, range(len(scores)))).all()
    assert torch.isfinite(relative(torch.tensor(scores).double())).all()


def test_clients_seen_for_the_first_time_extend_the_memory() -> None:
    _, progress = judge([-1.0, -2.0], [3, 7], EVIDENCE.after({}, [0], np.array([-1.0])))
    evidence = EVIDENCE.of(progress.notes, range(8))
    assert evidence[0] == -1.0
    assert np.isnan(evidence[[1, 2, 4, 5, 6]]).all() and np.isfinite(evidence[[3, 7]]).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_rounds(n: int) -> None:
    drop, _ = judge([-float(i) for i in range(n)], list(range(n)), {})
    assert sum(drop) <= MOST * n
