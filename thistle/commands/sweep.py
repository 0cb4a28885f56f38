"""`thistle sweep`: every cell of a grid of experiments, resumable, ending in tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from thistle.running.launch import Engine
from thistle.sweeps.cells import Cell, distinct
from thistle.sweeps.expectations import Finding
from thistle.sweeps.files import Sweep, read_sweep
from thistle.sweeps.launch import Ended, SweepLaunch
from thistle.sweeps.tables import describe
from thistle.terminal.screen import complain, results, say, table


def sweep(
    source: Annotated[str, typer.Argument(metavar="SWEEP|FILE.toml", help="A sweep's name, or your own file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every cell.")
    ] = None,
    out: Annotated[str, typer.Option(help="The folder for the sweep's folder.")] = "runs",
    jobs: Annotated[int, typer.Option(min=0, help="Cells at once; 0: one (ray), or one per core (inline).")] = 0,
    engine: Annotated[
        Engine | None,
        typer.Option(help="ray: one Ray for all; inline: one process per job. Default: the file's."),
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only check the file and list its cells.")] = False,
) -> None:
    """Run every unfinished cell of a sweep, then write tables and pictures and check expectations."""
    plan = read_sweep(source, overrides or [])
    home = Path(out).expanduser().resolve() / plan.name
    cells = plan.cells(home)
    if dry:
        list_cells(plan, cells)
        return
    ended = SweepLaunch(engine or Engine(plan.engine), jobs).run(plan, cells, home)
    good = show(ended, home)
    raise typer.Exit(0 if good else 1)


def list_cells(plan: Sweep, cells: Sequence[Cell]) -> None:
    rows = [[cell.id, cell.label, "finished" if cell.is_finished() else ""] for cell in cells]
    results.print(table(f"{plan.name}: {len(distinct(cells))} cells", ["id", "cell", ""], rows))


def show(ended: Ended, home: Path) -> bool:
    """The tables on stdout; whether all cells finished and every expectation held."""
    for metric in ended.grid.metrics:
        title = f"{ended.grid.sweep.name}: {metric}, {ended.grid.averaged}, %"
        results.print(table(title, *ended.grid.table(metric)))
        results.print()
    if ended.start_ups:
        say(f"start-up: median {median(ended.start_ups.values()):.1f} s per cell")
    results.print(f"tables (last, best, clients, classes: sweep.md) and pictures: {home}", markup=False, soft_wrap=True)
    return tell(ended.findings, ended.failed)


def tell(findings: Sequence[Finding], failed: Mapping[str, str]) -> bool:
    """What was expected, and what went wrong."""
    for finding in findings:
        results.print(f"expected, {describe(finding)}", markup=False, soft_wrap=True)
    for label, message in failed.items():
        complain(f"failed: {label}: {message}")
    if failed:
        complain(f"{len(failed)} cell{'s' * (len(failed) != 1)} failed; the same command tries again")
    return not failed and all(finding.held for finding in findings)
