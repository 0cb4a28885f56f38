"""Candidates as they are tried: which runs they have had, and what these say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thistle.attacks.stress.halving import Tried
from thistle.attacks.stress.suite import Candidate
from thistle.experiments.runfolder import read_json, read_lines
from thistle.report.statistics import mean_and_error
from thistle.sweeps.cells import Cell

ACCURACY, SUCCESS = "accuracy", "attack_success"


@dataclass
class Trial:
    """A candidate at one fraction of attackers."""

    candidate: Candidate
    fraction: float
    cells: list[Cell] = field(default_factory=list)
    """One for each seed so far."""
    rung: int = 1
    """1: a short run; 2: a full one; 3: one for every seed."""
    varied: bool = False
    """Whether it is a variation of a finalist."""

    @property
    def group(self) -> tuple[str, float]:
        """Those that it is compared with."""
        return self.candidate.suite, self.fraction

    def values(self, measure: str) -> list[float]:
        """Of each finished run; `accuracy` or `attack_success`."""
        name = "final_accuracy" if measure == ACCURACY else measure
        summaries = [read_json(cell.folder.summary) for cell in self.cells if cell.is_finished()]
        return [float(summary[name]) for summary in summaries if summary.get(name) is not None]

    @property
    def harm(self) -> list[float]:
        """What it is judged by, of each finished run: accuracy, or the success of a backdoor."""
        return self.values(measure_of(self.candidate))

    def at_pause(self, pause: int) -> float | None:
        """What the last evaluation up to this round says of the first seed's run."""
        found = at_round(self.cells[0], pause, measure_of(self.candidate))
        return None if found is None else float(found)

    def tried(self, values: Sequence[float]) -> Tried[Trial]:
        """By its mean: a low accuracy and a high success are bad for the defence."""
        mean, _ = mean_and_error(values)
        return Tried(self, self.candidate.kind, mean if measure_of(self.candidate) == ACCURACY else -mean)


def measure_of(candidate: Candidate) -> str:
    return SUCCESS if candidate.suite == "backdoor" else ACCURACY


def at_round(cell: Cell, number: int, measure: str) -> Any:
    """What a run's last evaluation up to a round says."""
    lines = (line for line in read_lines(cell.folder.metrics) if line["round"] <= number)
    return next((line[measure] for line in reversed(list(lines)) if line.get(measure) is not None), None)


def has_reached(cell: Cell, number: int) -> bool:
    """Whether a run has had this round, or ended before it."""
    if cell.is_finished():
        return True
    return number < cell.experiment.rounds and any(
        line["round"] == number and line.get(ACCURACY) is not None for line in read_lines(cell.folder.metrics)
    )
