"""`thistle report`: show runs and sweeps on one page that needs only a browser, and draw pictures."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import Out
from thistle.experiments.errors import UserError
from thistle.terminal.screen import results


def report(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RUN|SWEEP...", help="Run folders, sweeps, folders of runs; or names below --out."),
    ],
    output: Annotated[
        str, typer.Option(metavar="FILE.html", help="The page; default: report.html, in the folder if only one.")
    ] = "",
    cells: Annotated[
        bool, typer.Option("--cells", help="Also write a page for every run of a sweep; the sweep's page links to it.")
    ] = False,
    pictures: Annotated[
        str, typer.Option("--pictures", "--png", metavar="DIR", help="Also draw pictures for papers into this folder.")
    ] = "",
    latex: Annotated[str, typer.Option(metavar="DIR", help="Also write tables for papers into this folder.")] = "",
    tensorboard: Annotated[str, typer.Option(metavar="DIR", help="Also write TensorBoard event files there.")] = "",
    out: Out = "runs",
) -> None:
    """Show runs and sweeps on a page in one file: curves, clients, detection, cost, settings."""
    from thistle.report.page import write_page
    from thistle.report.sources import runs_below, sort_out

    if Path(output).suffix.lower() not in ("", ".html", ".htm"):
        raise UserError(f"--output {output}: the page is HTML, so name it .html (a browser prints it as PDF)")
    runs, sweeps = sort_out(sources, out)
    target = write_page(runs, sweeps, Path(output).expanduser() if output else None, cells)
    results.print(f"report: {target} ({target.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True)
    if pictures:
        from thistle.report.pictures import draw_all

        _write_into("--pictures", "pictures", Path(pictures).expanduser(), partial(draw_all, runs, sweeps))
    if latex:
        from thistle.report.latex import write_tables

        _write_into("--latex", "tables", Path(latex).expanduser(), partial(write_tables, runs, sweeps))
    if tensorboard:
        inner = [run for sweep in sweeps for run in runs_below(sweep)]
        _write_events([*runs, *inner], Path(tensorboard).expanduser())


def _write_into(option: str, what: str, folder: Path, write: Callable[[Path], Sized]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = write(folder)
    except OSError as error:
        raise UserError(f"{option} {folder}: cannot be written: {error.strerror}") from None
    results.print(f"{what}: {len(written)} in {folder}", markup=False, soft_wrap=True)


def _write_events(runs: list[Path], folder: Path) -> None:
    from thistle.report.events import write_events

    if not runs:
        raise UserError(f"--tensorboard {folder}: there are no runs to write yet")
    try:
        write_events(runs, folder)
    except OSError as error:
        raise UserError(f"--tensorboard {folder}: cannot be written: {error.strerror}") from None
    results.print(f"for TensorBoard: {len(runs)} runs in {folder}", markup=False, soft_wrap=True)
