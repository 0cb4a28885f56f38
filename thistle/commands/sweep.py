"""`thistle sweep`: every cell of a grid of experiments, resumable, ending in tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from thistle.experiments.errors import UserError
from thistle.experiments.locks import holding
from thistle.experiments.runfolder import write_json
from thistle.launch import Engine, Launch, engine_for
from thistle.prepare import cores
from thistle.screen import complain, results, say, table
from thistle.sweeps.cells import Cell
from thistle.sweeps.expectations import Finding, check
from thistle.sweeps.files import Sweep, read_sweep
from thistle.sweeps.scheduler import Carry, Outcome, Scheduler
from thistle.sweeps.tables import Grid, Result, describe, write_csv, write_markdown, write_plan, write_times


def sweep(
    source: Annotated[str, typer.Argument(metavar="SWEEP|FILE.toml", help="A sweep's name, or your own file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every cell.")
    ] = None,
    out: Annotated[str, typer.Option(help="The folder for the sweep's folder.")] = "runs",
    jobs: Annotated[int, typer.Option(min=0, help="Cells at once; 0: one (ray), or one a core (inline).")] = 0,
    engine: Annotated[
        Engine | None, typer.Option(help="ray: one SuperLink for all; inline: a process a job. Default: the file's.")
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only check the file and list its cells.")] = False,
) -> None:
    """Run every cell of a sweep that has not finished yet; then write tables and pictures and check expectations."""
    plan = read_sweep(source, overrides or [])
    home = Path(out).expanduser().resolve() / plan.name
    cells = plan.cells(home)
    chosen = engine or Engine(plan.engine)
    count = fit_jobs(jobs, chosen, len(cells))
    if dry:
        list_cells(plan, cells)
        return
    outcomes = carry_out(plan, cells, home, chosen, count)
    good = show(plan, cells, home, outcomes)
    raise typer.Exit(0 if good else 1)


def fit_jobs(wanted: int, engine: Engine, cells: int) -> int:
    """As many as asked for, as there are cells, and as the cores can bear."""
    most = min(cores(), cells)
    if wanted > cores():
        say(f"--jobs {wanted}: there are only {cores()} cores; {most} jobs")
    return max(1, min(wanted or (1 if engine is Engine.RAY else most), most))


def list_cells(plan: Sweep, cells: Sequence[Cell]) -> None:
    rows = [[cell.id, cell.label, "finished" if cell.is_finished() else ""] for cell in cells]
    results.print(table(f"{plan.name}: {len(cells)} cells", ["id", "cell", ""], rows))


def carry_out(plan: Sweep, cells: Sequence[Cell], home: Path, engine: Engine, jobs: int) -> list[Outcome]:
    """What is left to do."""
    todo = [cell for cell in cells if not cell.is_finished()]
    line = f"{plan.name}: {len(cells)} cells, {len(cells) - len(todo)} finished before"
    forecast = look_ahead(todo, engine) if len(todo) == len(cells) else ""
    make_home(home)
    with holding(home, "this sweep is still going on"):
        write_plan(plan, cells, home)
        say(f"{line}; {jobs} job{'s' * (jobs != 1)}{forecast}" if todo else line)
        if not todo:
            return []
        with carriers(engine, jobs, todo[0].experiment.runtime.ray_address) as carries:
            try:
                return Scheduler([with_workers(cell, engine, jobs) for cell in todo], len(cells), carries).run()
            except KeyboardInterrupt:
                complain(f"stopped; continue with the same command: finished cells of {home} are kept")
                raise


def look_ahead(cells: Sequence[Cell], engine: Engine) -> str:
    """What the first cell that can run will take; where none can, for want of data, nothing is begun."""
    problem: UserError | None = None
    for cell in {cell.experiment.task: cell for cell in reversed(cells)}.values():
        try:
            return f"; the first cell's {Launch(engine, quiet=True).check(cell.experiment)}"
        except UserError as error:
            problem = error
    raise problem or UserError("no cells")


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
def carriers(engine: Engine, jobs: int, ray_address: str) -> Iterator[list[Carry]]:
    """One for each job: Ray's share a SuperLink, inline ones have a process each."""
    if engine is Engine.RAY:
        with engine_for(engine, ray_address) as runner:
            yield [runner] * jobs
        return
    from thistle.sweeps.worker import Worker

    workers = [Worker() for _ in range(jobs)]
    try:
        yield [worker.carry_out for worker in workers]
    finally:
        for worker in workers:
            worker.end()


def show(plan: Sweep, cells: Sequence[Cell], home: Path, outcomes: Sequence[Outcome]) -> bool:
    """Files, then the table on stdout; whether all cells finished and all that was expected held."""
    found = [Result.of(cell) for cell in cells]
    messages = {outcome.cell.label: outcome.message for outcome in outcomes}
    left = [result.cell for result in found if result.summary is None]
    failed = {cell.label: messages.get(cell.label) or "did not finish" for cell in left}
    grid = Grid(plan, found)
    findings = [check(one, [(result.cell.axes, result.figures) for result in found]) for one in plan.expectations]
    start_ups = {outcome.cell.id: outcome.start_up for outcome in outcomes if outcome.start_up is not None}
    write_csv(plan, found, home)
    write_times(found, start_ups, home)
    write_markdown(grid, findings, failed, home)
    write_json(home / "expectations.json", [finding.document() for finding in findings])
    draw(grid, home)
    for metric in grid.metrics:
        results.print(table(f"{plan.name}: {metric}, %", *grid.table(metric)))
        results.print()
    if start_ups:
        say(f"start-up: median {median(start_ups.values()):.1f} s a cell")
    results.print(f"tables and pictures: {home}", markup=False, soft_wrap=True)
    return tell(findings, failed)


def draw(grid: Grid, home: Path) -> None:
    from thistle.sweeps.pictures import draw_curves, draw_final

    if any(result.summary for result in grid.results):
        draw_curves(grid, home / "curves.png")
        draw_final(grid, home / "final.png")


def tell(findings: Sequence[Finding], failed: dict[str, str]) -> bool:
    """What was expected, and what went wrong."""
    for finding in findings:
        results.print(f"expected, {describe(finding)}", markup=False, soft_wrap=True)
    for label, message in failed.items():
        complain(f"failed: {label}: {message}")
    if failed:
        complain(f"{len(failed)} cell{'s' * (len(failed) != 1)} failed; the same command tries again")
    return not failed and all(finding.held for finding in findings)
