"""A claim's experiment is run once more; then both are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.experiments.settings import Value
from thistle.running.launch import Engine, Launch
from thistle.sweeps.cells import ELSEWHERE
from thistle.tasks.threads import cores
from thistle.verify.claims import Claim

HERE = (*ELSEWHERE, "runtime.device", "task.data-dir")
"""Settings that may be others here: they say where to run, not what."""
EXACT = 1e-6
"""Shares of 1: accuracies of one model differ by less."""
CODE = "app_sha256"
PACKAGES = ("thistle-fl", "torch", "torchvision", "numpy", "flwr")
"""Of which another version may compute other bits."""


class Outcome(IntEnum):
    """Of a comparison; the command's exit code."""

    SAME = 0
    REFUTED = 1
    EXPLAINED = 3
    """Another model, made in another environment."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim."""

    claim: Claim
    model_sha256: str
    accuracy: float
    differences: Sequence[str]
    """Of the environments, in words."""

    @property
    def same_model(self) -> bool:
        return self.model_sha256 == self.claim.model_sha256

    @property
    def outcome(self) -> Outcome:
        if self.same_model:
            return Outcome.SAME if abs(self.off) < EXACT else Outcome.REFUTED
        return Outcome.EXPLAINED if self.differences else Outcome.REFUTED

    @property
    def off(self) -> float:
        """By how much the accuracy is above the claimed one, as a share of 1."""
        return self.accuracy - self.claim.accuracy

    def lines(self) -> list[str]:
        """In words, the answer first."""
        found, claimed = f"{100 * self.accuracy:.2f} %", f"{100 * self.claim.accuracy:.2f} %"
        if self.outcome is Outcome.SAME:
            return [f"same model to the bit ({self.model_sha256[:16]}), accuracy {found}"]
        if self.same_model:
            return [f"NOT as claimed: the same model to the bit, but its accuracy is {found}, not {claimed}"]
        off = f"accuracy {found} here, {claimed} claimed: {100 * self.off:+.2f} points"
        models = f"model {self.model_sha256[:16]} here, {self.claim.model_sha256[:16]} claimed"
        if self.outcome is Outcome.EXPLAINED:
            return ["another model, which another environment may explain", models, off, *self.differences]
        said = "in the same environment" if self.claim.environment else "and the claim does not say where it was made"
        return [f"NOT as claimed: another model, {said}", models, off]


def run_again(claim: Claim, home: Path, engine: Engine, quiet: bool, changes: Mapping[str, Value]) -> Verdict:
    """Raises RunFailed where it does not get to its end."""
    for key in changes:
        if key not in HERE:
            raise UserError(f"--set {key}: would change the experiment; only {', '.join(HERE)} may differ")
    keys = {key: value for key, value in claim.experiment.flat().items() if not key.startswith("run.")}
    keys |= {"runtime.workers": cores(), **changes, "run.name": "again", "run.out": str(home)}
    launch = Launch(engine, quiet, summary=False)
    with launch.new_run(Experiment.of(keys), exact=False) as job:
        launch.execute(*job)
    return compare(claim, job[2])


def compare(claim: Claim, again: RunFolder) -> Verdict:
    """With the run that has just ended."""
    summary = read_json(again.summary)
    differences = environment_differences(claim.environment, read_json(again.environment))
    return Verdict(claim, summary["model_sha256"], float(summary["final_accuracy"]), differences)


def environment_differences(claimed: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What may cause other bits from the same experiment; unknown if the claim does not say."""
    if not claimed:
        return []
    pairs = {
        "processor": (claimed.get("cpu"), here.get("cpu")),
        "vector instructions": (claimed.get("capability"), here.get("capability")),
        "devices": (_devices(claimed), _devices(here)),
        **{name: (_version(claimed, name), _version(here, name)) for name in PACKAGES},
        "Thistle's code": (_short(claimed.get(CODE)), _short(here.get(CODE))),
    }
    return [f"{what}: {there} there, {now} here" for what, (there, now) in pairs.items() if there != now]


def _version(environment: Mapping[str, Any], package: str) -> Any:
    return environment.get("packages", {}).get(package)


def _devices(environment: Mapping[str, Any]) -> str:
    return ", ".join(sorted({str(host.get("device")) for host in environment.get("hosts", [])}))


def _short(digest: Any) -> str:
    return str(digest)[:12]
