"""RoFSL, decoupled: the corrected direction and the server's length by hand, γ over the rounds, whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.federations import model_sha, rounds, run, tiny, verdicts
from tests.server.test_federation import Killed, MortalGrid
from thistle.experiments.errors import UserError
from thistle.strategies.build import resolve
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps import LossFilter, ServerLearning
from thistle.strategies.steps.compass import ACCEPTED, PULL, RememberDirections, corrected


class Server:
    """A known gradient, and a step of length 2."""

    def __init__(self, gradient: Tensor) -> None:
        self.known = gradient

    def gradient(self) -> Tensor:
        return self.known

    def learn(self, start: Tensor, rate: float) -> Tensor:
        return start + rate * torch.tensor([0.0, 20.0])


def round_of(gradient: list[float], memory: dict[str, np.ndarray] | None = None) -> Round:
    prior = torch.full((3,), 1 / 3, dtype=torch.float64)
    server = Server(torch.tensor(gradient))
    return Round(1, (0, 1, 2), prior, torch.ones(2), 0.1, server, memory or {})  # type: ignore[arg-type]


def test_the_pull_is_taken_out_and_the_accepted_direction_put_in() -> None:
    assert corrected(round_of([3.0, 1.0])).tolist() == [3.0, 1.0]
    memory = {PULL: np.float32([3.0, 4.0]), ACCEPTED: np.float32([0.0, -0.1])}
    assert corrected(round_of([3.5, 4.0], memory)).tolist() == pytest.approx([0.5, 5.0])


def test_running_means_of_what_was_accepted() -> None:
    progress = Progress.begin(torch.zeros(3, 2))
    moved = Progress(progress.updates, progress.kept, torch.tensor([1.0, 0.0]))
    first = RememberDirections()(round_of([2.0, 0.0]), moved).notes
    assert first[PULL].tolist() == [2.0, 0.0] and first[ACCEPTED].tolist() == [1.0, 0.0]
    second = RememberDirections()(round_of([0.0, 1.0], dict(first)), moved).notes
    assert second[PULL].tolist() == pytest.approx([1.8, 0.1])
    assert RememberDirections()(round_of([2.0, 0.0]), progress).notes == {}, "nobody was accepted"


def test_at_rest_the_gradient_ranks_nothing_first_and_the_corrected_one_last() -> None:
    """Honest updates along +g0, as at a stationary point of γf0 + F; one attacker sends nothing, one the opposite."""
    updates = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-0.5, 0.0]])
    plain = LossFilter(0.0, 0.5).scores(round_of([1.0, 0.0]), updates)
    assert plain.argmin() == 0
    memory = {PULL: np.float32([1.0, 0.0]), ACCEPTED: np.float32([0.5, 0.0])}
    scores = LossFilter(0.0, 0.5, "corrected").scores(round_of([1.0, 0.0], memory), updates)
    assert scores.argsort(descending=True).tolist() == [0, 1, 2]


def test_the_best_length_is_the_server_s() -> None:
    updates = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    assert LossFilter(1.0, 0.5).scores(round_of([1.0, 0.0]), updates).tolist() == [-1.0, -4.0, -9.0]
    assert LossFilter(1.0, 0.5, length="server").scores(round_of([1.0, 0.0]), updates).tolist() == [-1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ("falling", [0.5, 0.375, 0.25, 0.125, 0.0, 0.0]),
        ("late", [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]),
    ],
)
def test_gamma_over_the_rounds(schedule: str, wanted: list[float]) -> None:
    learning = ServerLearning(0.5, 0.0, schedule, 4)
    assert [learning.gamma_in(number) for number in range(1, 7)] == wanted


def test_the_server_learns_as_the_schedule_says(tmp_path: Path) -> None:
    keys = {"strategy.name": "rofsl", "strategy.gamma-schedule": "late", "strategy.gamma-rounds": 2, "rounds": 4}
    steps = [line["server.step"] for line in rounds(run(tiny(tmp_path, **keys)))]
    assert steps[:2] == [0.0, 0.0] and min(steps[2:]) > 0


@pytest.mark.parametrize("option", [{"strategy.compass": "corrected"}, {"strategy.length": "server"}])
def test_a_killed_run_resumes_exactly(tmp_path: Path, option: dict[str, Any]) -> None:
    keys = {"strategy.name": "rofsl", "rounds": 5, **option}
    whole = run(tiny(tmp_path, "whole", **keys))
    plain = run(tiny(tmp_path, "plain", **{**keys, **dict.fromkeys(option, "default")}))
    broken = tiny(tmp_path, "broken", **keys)
    with pytest.raises(Killed):
        run(broken, MortalGrid(broken, 3))
    resumed = run(tiny(tmp_path, "broken", **keys, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(whole)
    assert verdicts(resumed) == verdicts(whole) != verdicts(plain)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"compass": "corrected", "filter": "angle"}, "strategy.compass = corrected: only the loss filter has it"),
        ({"length": "server", "filter": "none"}, "strategy.length = server: only the loss filter has it"),
        ({"compass": "north"}, "strategy.compass = 'north': should be 'gradient' or 'corrected'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(keys: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve(tiny(Path(), **{"strategy.name": "rofsl", **{f"strategy.{key}": value for key, value in keys.items()}}))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
