"""What a search has found, and stress.json: the plan from the start, everything at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from thistle.attacks.stress.halving import rank
from thistle.attacks.stress.suite import SUITES, VERSION, Candidate, digest
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import read_json, read_lines, write_json
from thistle.report.sources import is_run, is_sweep
from thistle.report.statistics import mean_and_error
from thistle.sweeps.cells import Cell
from thistle.worst_case.plan import Plan
from thistle.worst_case.question import Question
from thistle.worst_case.trials import ACCURACY, SUCCESS, Trial

FORMAT = 1
STRESS = "stress.json"


@dataclass(frozen=True)
class LeftOut:
    """A candidate that the experiment does not allow."""

    candidate: Candidate
    fractions: Sequence[float]
    reason: str


@dataclass(frozen=True)
class Found:
    """A search that has ended."""

    question: Question
    plan: Plan
    nobody: Trial
    trials: Sequence[Trial]
    left_out: Sequence[LeftOut]
    failed: Mapping[str, str]
    """Label and message of every run that has not finished."""

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """The worst case of each suite at each fraction, among the attacks that all seeds were tried with."""
        groups = [(suite, fraction) for suite in SUITES[self.question.suite] for fraction in self.question.fractions]
        found = [(group, [trial for trial in self.trials if trial.group == group]) for group in groups]
        return [row for _, trials in found if (row := self._worst(trials)) is not None]

    def _worst(self, trials: Sequence[Trial]) -> dict[str, Any] | None:
        measured = [(trial, trial.harm) for trial in trials]
        whole = rank([trial.tried(values) for trial, values in measured if len(values) == self.plan.seeds])
        if not whole:
            return None
        trial = whole[0].candidate
        row = {"suite": trial.candidate.suite, "fraction": trial.fraction, **_named(trial.candidate), **figures(trial)}
        return {**row, "seeds": self.plan.seeds, "quote": self._quote(trial)}

    def _quote(self, trial: Trial) -> str:
        found, suite = figures(trial), trial.candidate.suite
        limit = f" within {self.question.budget:g} min" if self.plan.shortened else ""
        where = f"{VERSION}{' backdoor' if suite == 'backdoor' else ''}{limit} @ {100 * trial.fraction:g} %"
        if suite == "backdoor":
            numbers = f"success {100 * found['success']:.1f}, accuracy {100 * found['accuracy']:.1f}"
        else:
            numbers = f"{100 * found['accuracy']:.1f}"
        return f"{where}: {numbers} ({trial.candidate.label})"

    def by_kind(self, suite: str) -> dict[str, dict[float, Trial]]:
        """Each attack at its worst settings by fraction; the most harmful attack first."""
        found: dict[str, dict[float, list[Trial]]] = {}
        for trial in self.trials:
            if trial.candidate.suite == suite and trial.harm:
                found.setdefault(trial.candidate.kind, {}).setdefault(trial.fraction, []).append(trial)
        chosen = {kind: {f: _furthest(trials) for f, trials in row.items()} for kind, row in found.items()}
        return dict(sorted(chosen.items(), key=lambda row: min(_harm(trial) for trial in row[1].values())))

    def document(self) -> dict[str, Any]:
        """stress.json."""
        experiment = self.nobody.cells[0].experiment
        lines = [line for cell in self._cells() for line in read_lines(cell.folder.metrics)]
        return {
            "task": experiment.task.name,
            "strategy": experiment.strategy.name,
            "results": self.results,
            "no_attack": figures(self.nobody),
            "candidates": [self._row(trial) for trial in self.trials],
            "left_out": [{**_named(one.candidate), "reason": one.reason} for one in self.left_out],
            "failed": dict(self.failed),
            "cost": {
                "runs": len(self._cells()),
                "rounds": len(lines),
                "seconds": round(sum(line["seconds"] for line in lines), 1),
            },
        }

    def _row(self, trial: Trial) -> dict[str, Any]:
        at_pause = trial.at_pause(self.plan.pause) if not trial.varied else None
        row = {"suite": trial.candidate.suite, "fraction": trial.fraction, **_named(trial.candidate)}
        row |= {"rung": trial.rung, "varied": trial.varied, "at_pause": at_pause, **figures(trial)}
        return {**row, "folders": [cell.folder.path.name for cell in trial.cells]}

    def _cells(self) -> list[Cell]:
        return [cell for trial in (self.nobody, *self.trials) for cell in trial.cells]


def figures(trial: Trial) -> dict[str, Any]:
    """Mean and standard error over the seeds that have finished; None where there are none."""
    made: dict[str, Any] = {}
    for name, measure in (("accuracy", ACCURACY), ("success", SUCCESS)):
        values = trial.values(measure)
        if values or measure == ACCURACY:
            mean, error = mean_and_error(values) if values else (None, None)
            made |= {name: mean, f"{name}_error": error, f"{name}_by_seed": values}
    return made


def _named(candidate: Candidate) -> dict[str, Any]:
    return {"attack": candidate.kind, "settings": dict(candidate.settings), "label": candidate.label}


def _harm(trial: Trial) -> float:
    return trial.tried(trial.harm).score


def _furthest(trials: Sequence[Trial]) -> Trial:
    """Of an attack's settings those with the most seeds, and of these the most harmful."""
    return min(trials, key=lambda trial: (-len(trial.values(ACCURACY)), _harm(trial)))


def _head(question: Question, plan: Plan, tried: Sequence[Candidate], home: Path) -> dict[str, Any]:
    """What a plan is known by."""
    return {
        "format": FORMAT,
        "suite": VERSION,
        "suite_digest": digest(tried),
        "name": question.name,
        "experiment": question.id(home),
        **question.asked(),
        "plan": plan.document(),
    }


def check_home(question: Question, home: Path) -> None:
    """A folder is of one experiment."""
    before = _before(home)
    if not before and (is_sweep(home) or is_run(home)):
        raise UserError(f"{home}: holds something else; choose another --name")
    if before and before.get("experiment") != question.id(home):
        raise UserError(f"{home}: holds the stress of another experiment; choose another --name")


def read_plan(question: Question, home: Path, tried: Sequence[Candidate]) -> Plan | None:
    """The plan that was started here for the same question; None: there is none."""
    before = _before(home)
    if not before or any(before.get(key) != value for key, value in _asked(question, tried).items()):
        return None
    return Plan.of(before["plan"])


def _asked(question: Question, tried: Sequence[Candidate]) -> dict[str, Any]:
    return {"format": FORMAT, "suite": VERSION, "suite_digest": digest(tried), **question.asked()}


def _before(home: Path) -> dict[str, Any]:
    path = home / STRESS
    try:
        return dict(read_json(path)) if path.is_file() else {}
    except ValueError:
        raise UserError(f"{path}: cannot be read; remove it (the runs next to it are kept)") from None


def write_plan(question: Question, plan: Plan, tried: Sequence[Candidate], home: Path) -> None:
    """stress.json before anything is known; what an older search left goes."""
    (home / "sweep.json").unlink(missing_ok=True)
    write_json(home / STRESS, _head(question, plan, tried, home))


def write_found(found: Found, home: Path) -> None:
    """stress.json at the end."""
    document = found.document()
    head = {key: value for key, value in read_json(home / STRESS).items() if key not in document}
    write_json(home / STRESS, {**head, **document})
