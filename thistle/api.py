"""`thistle.run` and `thistle.sweep`: what the commands of these names do, with exceptions for exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from thistle.engines.flower_programs import EngineError
from thistle.experiments.errors import RunFailed, UserError
from thistle.results.runs import Run, SweepFailed, SweepResult
from thistle.running.launch import Engine, Launch
from thistle.running.prepare import make_experiment
from thistle.sweeps.files import read_sweep
from thistle.sweeps.launch import SweepLaunch
from thistle.terminal.screen import complain

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
        label, message = next(iter(result.failed.items()))
        more = f" (and {len(result.failed) - 1} more)" if len(result.failed) > 1 else ""
        raise SweepFailed(f"{label}: {message}{more}; the same call tries again", result)
    return result


@contextmanager
def _failures() -> Iterator[None]:
    """An engine that fails before there is a run folder is a failed run, too."""
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
