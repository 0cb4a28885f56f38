"""Carry out a sweep: the cells that are left, on an engine; then its files. Used by the command and from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from thistle.experiments.errors import UserError
from thistle.experiments.locks import holding
from thistle.experiments.runfolder import write_json
from thistle.experiments.settings import Runtime
from thistle.running.launch import Engine, Launch, engine_for
from thistle.sweeps.cells import Cell, distinct
from thistle.sweeps.expectations import Finding, check
from thistle.sweeps.files import Sweep
from thistle.sweeps.scheduler import Carry, Outcome, Scheduler
from thistle.sweeps.tables import Grid, Result, write_csv, write_markdown, write_plan, write_times
from thistle.tasks.threads import cores
from thistle.terminal.screen import complain, say


@dataclass(frozen=True)
class Ended:
    """A sweep after all its cells have had their turn."""

    grid: Grid
    findings: Sequence[Finding]
    failed: Mapping[str, str]
    """Label and message of every cell that has not finished."""
    start_ups: Mapping[str, float]


@dataclass(frozen=True)
class SweepLaunch:
    """How to run a sweep."""

    engine: Engine
    jobs: int = 0
    quiet: bool = False

    def run(self, plan: Sweep, cells: Sequence[Cell], home: Path) -> Ended:
        """What is left to do, then the sweep's files."""
        return write_results(plan, cells, home, self._carry_out(plan, cells, home))

    def _carry_out(self, plan: Sweep, points: Sequence[Cell], home: Path) -> list[Outcome]:
        cells = distinct(points)
        jobs = fit_jobs(self.engine, self.jobs, len(cells), self._say)
        todo = [cell for cell in cells if not cell.is_finished()]
        line = f"{plan.name}: {len(cells)} cells, {len(cells) - len(todo)} finished before"
        forecast = self._look_ahead(todo) if len(todo) == len(cells) else ""
        make_home(home)
        with holding(home, "this sweep has not ended yet"):
            write_plan(plan, points, home)
            self._say(f"{line}; {jobs} job{'s' * (jobs != 1)}{forecast}" if todo else line)
            if not todo:
                return []
            shared = [with_workers(cell, self.engine, jobs) for cell in todo]
            with carriers(self.engine, jobs, shared[0].experiment.runtime) as carries:
                try:
                    return Scheduler(shared, len(cells), carries, self.quiet).run()
                except KeyboardInterrupt:
                    if not self.quiet:
                        complain(f"stopped; continue with the same command: finished cells of {home} are kept")
                    raise

    def _look_ahead(self, cells: Sequence[Cell]) -> str:
        """What the first cell that can run will take; if none can, because data is missing, nothing is started."""
        problem: UserError | None = None
        for cell in {cell.experiment.task: cell for cell in reversed(cells)}.values():
            try:
                return f"; the first cell's {Launch(self.engine, self.quiet).check(cell.experiment)}"
            except UserError as error:
                problem = error
        raise problem or UserError("no cells")

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text)


def fit_jobs(engine: Engine, wanted: int, cells: int, tell: Callable[[str], None]) -> int:
    """As many as asked for (0: one on Ray, otherwise one per core), as there are cells, and as the cores can bear."""
    most = min(cores(), cells)
    if wanted > cores():
        tell(f"--jobs {wanted}: there are only {cores()} cores; {most} jobs")
    return max(1, min(wanted or (1 if engine is Engine.RAY else most), most))


def make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out: cannot make {home}: {error.strerror}") from None


def with_workers(cell: Cell, engine: Engine, jobs: int) -> Cell:
    """The cores are shared out among the jobs."""
    workers = max(1, cores() // jobs) if engine is Engine.RAY else 1
    runtime = cell.experiment.runtime.model_copy(update={"workers": workers})
    return Cell(
        cell.axes, cell.settings, cell.seed, cell.experiment.model_copy(update={"runtime": runtime}), cell.folder
    )


@contextmanager
def carriers(engine: Engine, jobs: int, runtime: Runtime) -> Iterator[list[Carry]]:
    """A process for each job; with Ray, each has its own Ray."""
    if engine is Engine.RAY:
        with ExitStack() as stack:
            yield [stack.enter_context(engine_for(engine, runtime)) for _ in range(jobs)]
        return
    from thistle.engines.process import RunProcess

    processes = [RunProcess() for _ in range(jobs)]
    try:
        yield [process.carry_out for process in processes]
    finally:
        for process in processes:
            process.end()


def write_results(plan: Sweep, cells: Sequence[Cell], home: Path, outcomes: Sequence[Outcome]) -> Ended:
    """Tables, pictures and what was expected, as files."""
    found = [Result.of(cell) for cell in cells]
    messages = {outcome.cell.id: outcome.message for outcome in outcomes}
    left = [result.cell for result in found if result.summary is None]
    failed = {cell.label: messages.get(cell.id) or "did not finish" for cell in left}
    grid = Grid(plan, found)
    findings = [check(one, [(result.cell.axes, result.figures) for result in found]) for one in plan.expectations]
    start_ups = {outcome.cell.id: outcome.start_up for outcome in outcomes if outcome.start_up is not None}
    write_csv(plan, found, home)
    write_times(found, start_ups, home)
    write_markdown(grid, findings, failed, home)
    write_json(home / "expectations.json", [finding.document() for finding in findings])
    draw(grid, home)
    return Ended(grid, findings, failed, start_ups)


def draw(grid: Grid, home: Path) -> None:
    from thistle.sweeps.pictures import draw_curves, draw_final

    if any(result.summary for result in grid.results):
        draw_curves(grid, home / "curves.png")
        draw_final(grid, home / "final.png")
