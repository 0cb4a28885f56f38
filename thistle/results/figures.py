"""A finished run in figures, as DSVD-FL's paper compares strategies. Accuracies are shares, times are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines

NEAR = 0.02
"""An accuracy that stays within two points of the last one has converged."""


@dataclass(frozen=True)
class Figures:
    """What a run came to by itself."""

    average: float
    last: float
    maximum: float
    final: float
    """The mean of the last k evaluations."""
    averaged: int | None
    """k; None: a run of an older version, which did not say."""
    deviation: float
    seconds_per_round: float
    seconds_to_maximum: float
    after_convergence: float
    convergence: int
    """The first round from which accuracy stays near the last one."""


@dataclass(frozen=True)
class Robustness:
    """What an attack has cost, measured against a clean run."""

    degradation: float
    tolerance: float
    quotient: float


@dataclass(frozen=True)
class Finished:
    """A finished run, read from its folder."""

    folder: RunFolder
    experiment: Experiment
    rounds: Sequence[dict[str, Any]]
    final: float
    malicious: float
    """The share of clients that attacked."""
    averaged: int | None = None

    @classmethod
    def read(cls, folder: RunFolder) -> Finished:
        """One line says what is missing."""
        experiment = folder.load_experiment()
        status = folder.get_status().get("status", "no status")
        if status != "finished" or not folder.summary.is_file():
            raise UserError(f"{folder.path}: is not finished ({status}); thistle resume {folder.path}")
        rounds = list(read_lines(folder.metrics))
        if not any(line.get("accuracy") is not None for line in rounds):
            raise UserError(f"{folder.path}: no round in metrics.jsonl has an accuracy")
        truth, summary = read_json(folder.truth), read_json(folder.summary)
        if truth["malicious"] is None:
            raise UserError(f"{folder.path}: a deployed run: nobody knows who attacked, so it cannot be compared")
        share = len(truth["malicious"]) / experiment.task.clients if experiment.attack.kind != "none" else 0.0
        final, averaged = float(summary["final_accuracy"]), summary.get("evaluations_averaged")
        return cls(folder, experiment, rounds, final, share, averaged)

    def figures(self) -> Figures:
        """The run by itself; averages are over its evaluations."""
        evaluated = [(line["round"], line["accuracy"]) for line in self.rounds if line.get("accuracy") is not None]
        accuracies = [accuracy for _, accuracy in evaluated]
        best, converged = accuracies.index(max(accuracies)), converged_at(accuracies)
        return Figures(
            average=fmean(accuracies),
            last=accuracies[-1],
            maximum=max(accuracies),
            final=self.final,
            averaged=self.averaged,
            deviation=pstdev(accuracies),
            seconds_per_round=fmean(line["seconds"] for line in self.rounds),
            seconds_to_maximum=sum(line["seconds"] for line in self.rounds if line["round"] <= evaluated[best][0]),
            after_convergence=fmean(accuracies[converged:]),
            convergence=evaluated[converged][0],
        )

    def against(self, clean: Finished) -> Robustness:
        """Degradation (clean − attacked) / clean, tolerance 1 − degradation, quotient final / (1 − attackers) ≤ 1."""
        lost = (clean.final - self.final) / clean.final if clean.final else 0.0
        honest = 1 - self.malicious
        return Robustness(lost, 1 - lost, min(1.0, self.final / honest) if honest > 0 else float(self.final > 0))


def converged_at(accuracies: Sequence[float]) -> int:
    """The first evaluation from which none is farther than two points from the last."""
    far = [i for i, accuracy in enumerate(accuracies) if abs(accuracy - accuracies[-1]) > NEAR + 1e-9]
    return far[-1] + 1 if far else 0
