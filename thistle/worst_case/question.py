"""What somebody wants to know: how low can this experiment be brought, by how many attackers?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thistle.attacks.checks import check_attack
from thistle.attacks.stress.suite import SUITES, Candidate
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import pin
from thistle.experiments.settings import Value
from thistle.running.prepare import Overrides, changed, plain_name, read_overrides, read_source, settle
from thistle.sweeps.cells import Cell, folders, identity, place
from thistle.sweeps.files import DESTROYED
from thistle.tasks.task import Task

FRACTIONS = (0.1, 0.3, 0.6)
OURS = ("attack.", "run.")
NOBODY = Candidate("none", "none")


@dataclass(frozen=True)
class Question:
    """An experiment without an attack, and what the search for one may cost."""

    name: str
    """Of the folder."""
    base: Mapping[str, Any]
    code: Sequence[Path]
    """Where modules of the user's are looked for."""
    dropped: Sequence[str]
    """Settings of the experiment's own attack."""
    fractions: Sequence[float]
    suite: str
    seeds: int
    budget: float | None
    """Minutes."""

    def experiment(self, home: Path, candidate: Candidate, fraction: float, seed: int) -> Experiment:
        """The run that tries it; raises UserError where the experiment does not allow that."""
        who: dict[str, Value] = {"attack.fraction": fraction} if candidate is not NOBODY else {}
        keys = pin(changed(self.base, {**candidate.keys, **who, "seed": seed}), self.code)
        return settle(keys, self.name, str(home.parent))

    def id(self, home: Path) -> str:
        """The same for the same experiment, whatever is asked about it."""
        return identity(self.experiment(home, NOBODY, 0.0, 0))

    def asked(self) -> dict[str, Any]:
        """What a plan was made for."""
        budget = None if self.budget is None else float(self.budget)
        return {"suites": self.suite, "fractions": list(self.fractions), "seeds": self.seeds, "budget": budget}


class Cells:
    """The runs of a question, each in a folder below `home`."""

    def __init__(self, question: Question, home: Path) -> None:
        self.question, self.home = question, home
        self._there = folders(home)

    def cell(self, candidate: Candidate, fraction: float, seed: int) -> Cell:
        axes: dict[str, Value] = {"attack": candidate.kind}
        if candidate.words:
            axes["settings"] = candidate.words
        if candidate is not NOBODY:
            axes["fraction"] = fraction
        experiment = self.question.experiment(self.home, candidate, fraction, seed)
        return place(self.home, self._there, experiment, axes, candidate.keys)

    def refused(self, candidate: Candidate, fraction: float, task: Task) -> str:
        """Why the experiment does not allow it; empty: it does."""
        try:
            experiment = self.question.experiment(self.home, candidate, fraction, 0)
            check_attack(experiment.attack, experiment.task.clients, experiment.rounds, task.classes, task.shape)
        except UserError as error:
            return str(error)
        return ""


def ask(
    source: str | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    fractions: str | Sequence[float] = FRACTIONS,
    suite: str = "standard",
    seeds: int = 3,
    budget: float | None = None,
    name: str = "",
) -> Question:
    """The question, checked as far as it can be without data."""
    keys, stem, code = read_source(source)
    typed = read_overrides(overrides)
    for key in typed:
        if key == "seed" or key.startswith(OURS):
            raise UserError(f"--set {key}: stress sets it for each run; leave it out")
    own = [key for key in keys if key.startswith("attack.")]
    kept = {key: value for key, value in keys.items() if key != "seed" and not key.startswith(OURS)}
    if suite not in SUITES:
        raise UserError(f"--suite {suite}: should be {', '.join(list(SUITES)[:-1])} or {list(SUITES)[-1]}")
    if type(seeds) is not int or seeds < 1:
        raise UserError(f"--seeds {seeds}: should be a whole number, 1 or more")
    if budget is not None and not (isinstance(budget, int | float) and 0 < budget < math.inf):
        raise UserError(f"--budget {budget}: should be minutes, more than 0")
    folder = plain_name(name or f"{stem}-stress")
    base = changed({**DESTROYED, **kept}, typed)
    return Question(folder, base, code, own, _fractions(fractions), suite, seeds, budget)


def _fractions(given: str | Sequence[float]) -> list[float]:
    """In order; raises UserError for what is not a share of clients, or occurs twice."""
    try:
        fractions = [float(part) for part in (given.split(",") if isinstance(given, str) else given)]
    except (TypeError, ValueError):
        fractions = []
    if not fractions or not all(0 < fraction < 1 for fraction in fractions) or len(set(fractions)) < len(fractions):
        raise UserError(f"--fractions {given}: should be different numbers between 0 and 1, such as 0.1,0.3,0.6")
    return sorted(fractions)
