"""`thistle.run`, `thistle.sweep`, `thistle.stress`: what the commands do, with exceptions for exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from thistle.engines.flower_programs import EngineError
from thistle.experiments.errors import RunFailed, UserError
from thistle.results.runs import Run, SweepFailed, SweepResult
from thistle.results.worst_cases import StressFailed, StressResult
from thistle.running.launch import Engine, Launch
from thistle.running.prepare import make_experiment
from thistle.sweeps.files import read_sweep
from thistle.sweeps.launch import SweepLaunch
from thistle.terminal.screen import complain
from thistle.worst_case.question import ask
from thistle.worst_case.search import Search

Source = str | Path | Mapping[str, Any]


def run_experiment(
    source: Source,
    overrides: Mapping[str, Any] | None,
    *,
    name: str,
    out: str | Path,
    engine: str,
    workers: int | None,
    progress: bool,
) -> Run:
    """See `thistle.run`."""
    launch = Launch(_engine(engine), quiet=not progress)
    experiment = make_experiment(_source(source), overrides or {}, name, str(out), _count("workers", workers))
    with _failures(), launch.new_run(experiment, exact=bool(name)) as job:
        folder = job[2].path
        try:
            launch.execute(*job)
        except KeyboardInterrupt:
            if progress:
                complain(f"stopped; continue with: thistle resume {folder}")
            raise
        return Run(folder)


def run_sweep(
    source: Source,
    overrides: Mapping[str, Any] | None,
    *,
    name: str,
    out: str | Path,
    engine: str | None,
    jobs: int | None,
    progress: bool,
) -> SweepResult:
    """See `thistle.sweep`."""
    plan = read_sweep(_source(source), overrides or {}, name)
    home = Path(out).expanduser().resolve() / plan.name
    launch = SweepLaunch(_engine(engine or plan.engine), _count("jobs", jobs) or 0, quiet=not progress)
    with _failures():
        result = SweepResult(home, launch.run(plan, plan.cells(home), home))
    if result.failed:
        raise SweepFailed(_first(result.failed), result)
    return result


def run_stress(
    source: Source,
    overrides: Mapping[str, Any] | None,
    *,
    fractions: Sequence[float],
    suite: str,
    seeds: int,
    budget: float | None,
    name: str,
    out: str | Path,
    engine: str,
    jobs: int | None,
    progress: bool,
) -> StressResult:
    """See `thistle.stress`."""
    question = ask(
        _source(source), overrides or {}, fractions=fractions, suite=suite, seeds=seeds, budget=budget, name=name
    )
    home = Path(out).expanduser().resolve() / question.name
    search = Search(question, home, _engine(engine), _count("jobs", jobs) or 0, quiet=not progress)
    with _failures():
        result = StressResult(home, search.run())
    if result.failed:
        raise StressFailed(_first(result.failed), result)
    return result


def _first(failed: Mapping[str, str]) -> str:
    label, message = next(iter(failed.items()))
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{label}: {message}{more}; the same call tries again"


@contextmanager
def _failures() -> Iterator[None]:
    """An engine that fails before there is a run folder also counts as a failed run."""
    try:
        yield
    except EngineError as error:
        raise RunFailed(str(error)) from error


def _engine(name: str) -> Engine:
    try:
        return Engine(name)
    except ValueError:
        raise UserError(f"engine = {name!r}: should be ray or inline") from None


def _source(source: Source) -> str | Mapping[str, Any]:
    return source if isinstance(source, Mapping) else str(source)


def _count(key: str, value: int | None) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"{key} = {value!r}: should be a whole number, 1 or more")
    return value
