"""Thistle: robust federated learning on Flower.

import thistle
run = thistle.run("digits-mix", {"strategy.name": "rofsl"}, engine="inline")
run.summary["last_accuracy"], run.metrics, run.model, run.report()
thistle.load("runs/digits-mix").predict(["seven.png"])
"""

from __future__ import annotations

import os

_package = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_package, "protocol")):  # a checkout: the rooms lie beside this folder
    __path__.append(os.path.dirname(_package))  # before anything else: another thread may be importing a room

from collections.abc import Mapping, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from thistle.experiments.errors import RunFailed, UserError
    from thistle.results.runs import Run, SweepFailed, SweepResult
    from thistle.results.trained import Prediction
    from thistle.results.worst_cases import StressFailed, StressResult
    from thistle.server.guard.guarded import Guarded

__all__ = [
    "Guarded",
    "Prediction",
    "Run",
    "RunFailed",
    "StressFailed",
    "StressResult",
    "SweepFailed",
    "SweepResult",
    "UserError",
    "load",
    "open_run",
    "run",
    "stress",
    "sweep",
]

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""One thread per process: more give other bits, and on busy cores they cost time. Read when numpy is imported."""


def run(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    out: str | Path = "",
    engine: str = "ray",
    workers: int | None = None,
    progress: bool = True,
) -> Run:
    """Run an experiment and return its results; the same as the command `thistle run`.

    Args:
        source: a preset's name, the path of a .toml file, or a dictionary of settings.
        overrides: settings to change, by their dotted names: {"strategy.name": "rofsl"}.
        name: the run's name, which must be new; default: the experiment's, numbered.
        out: the folder for run folders; default: runs.
        engine: "ray" (a SuperLink and Ray workers) or "inline" (this process).
        workers: hosts to train on; default: one per core.
        progress: show progress on stderr or in the notebook; False: silent.

    Raises UserError for bad input and RunFailed for a run that failed. After KeyboardInterrupt the run is resumable.
    """
    from thistle.api import run_experiment

    return run_experiment(source, overrides, name=name, out=out, engine=engine, workers=workers, progress=progress)


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    out: str | Path = "runs",
    engine: str | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> SweepResult:
    """Run every unfinished cell of a sweep; the same as the command `thistle sweep`.

    Args:
        source: a sweep's name, the path of its .toml file, or a dictionary with the same content.
        overrides: settings to change in every cell, by their dotted names.
        name: the sweep's folder below `out`; default: the file's name.
        engine: "ray" or "inline"; default: the file's.
        jobs: cells at once; default: one (ray), or one per core (inline).

    Raises UserError for bad input and, after all other cells have run, SweepFailed if cells failed.
    """
    from thistle.api import run_sweep

    return run_sweep(source, overrides, name=name, out=out, engine=engine, jobs=jobs, progress=progress)


def stress(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    fractions: Sequence[float] = (0.1, 0.3, 0.6),
    suite: str = "standard",
    seeds: int = 3,
    budget: float | None = None,
    name: str = "",
    out: str | Path = "runs",
    engine: str = "inline",
    jobs: int | None = None,
    progress: bool = True,
) -> StressResult:
    """Search for the attack that harms an experiment most; the same as the command `thistle stress`.

    Args:
        source: a preset's name, the path of a .toml file, or a dictionary of settings; its own attack is left out.
        overrides: settings to change, by their dotted names.
        fractions: shares of malicious clients; there is a worst case for each.
        suite: "standard" (the lowest accuracy), "backdoor" (the highest success of the attack) or "all".
        seeds: how many; the worst attacks run with all of them.
        budget: minutes; the search tries fewer attacks to end in time.
        name: the search's folder below `out`; default: the experiment's name and -stress.
        jobs: runs at once; default: one (ray), or one per core (inline).

    Raises UserError for bad input and, after all other runs, StressFailed if runs failed. The same call continues
    a search that was interrupted.
    """
    from thistle.api import run_stress

    return run_stress(
        source,
        overrides,
        fractions=fractions,
        suite=suite,
        seeds=seeds,
        budget=budget,
        name=name,
        out=out,
        engine=engine,
        jobs=jobs,
        progress=progress,
    )


def load(run: str | Path, out: str | Path = "runs") -> Run:
    """A finished run with its model ready to use: given by its folder, its name below `out`, or its model's file."""
    from thistle.results.runs import load_run

    return load_run(run, out)


def open_run(run: str | Path, out: str | Path = "runs") -> Run:
    """Any run, finished or not, failed or still running: given by its folder or its name below `out`."""
    from thistle.results import runs

    return runs.open_run(run, out)


if not TYPE_CHECKING:  # so that mypy still knows which names there are
    _CLASSES = {
        "Guarded": "thistle.server.guard.guarded",
        "Prediction": "thistle.results.trained",
        "Run": "thistle.results.runs",
        "RunFailed": "thistle.experiments.errors",
        "StressFailed": "thistle.results.worst_cases",
        "StressResult": "thistle.results.worst_cases",
        "SweepFailed": "thistle.results.runs",
        "SweepResult": "thistle.results.runs",
        "UserError": "thistle.experiments.errors",
    }

    def __getattr__(name: str) -> Any:
        """Classes are imported when they are first used: `import thistle` itself takes no time."""
        from importlib import import_module

        if name not in _CLASSES:
            raise AttributeError(f"module 'thistle' has no attribute {name!r}")
        return getattr(import_module(_CLASSES[name]), name)
