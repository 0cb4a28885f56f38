"""`thistle leaderboard`: turn stress folders into entries, and all entries into a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_atomically
from thistle.terminal.screen import results


def leaderboard(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STRESS...]",
            help="Folders of thistle stress, or folders that hold some; none: only build the page again.",
        ),
    ] = None,
    docs: Annotated[
        str, typer.Option(metavar="DIR", help="Entries go to DIR/leaderboard, the page to DIR/leaderboard.md.")
    ] = "docs",
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The defence's name; default: its strategy's name.")
    ] = "",
    html: Annotated[str, typer.Option(metavar="FILE.html", help="Also write the page as HTML.")] = "",
) -> None:
    """Rank defences by their worst case: an entry per stress folder, and one page with all entries."""
    from thistle.leaderboard.entries import make_entry, read_entries, write_entry
    from thistle.leaderboard.page import make_page

    home = Path(docs).expanduser()
    found = [one for given in folders or [] for one in _searches(Path(given).expanduser())]
    if name and len(found) != 1:
        raise UserError(f"--as {name}: names one defence, but {len(found)} stress folders are given")
    for folder in found:
        path = write_entry(make_entry(folder, name), home / "leaderboard")
        results.print(f"entry: {path}", markup=False, soft_wrap=True)
    entries = read_entries(home / "leaderboard")
    if not entries:
        raise UserError(f"{home / 'leaderboard'}: no entries; name folders that thistle stress has made")
    page = home / "leaderboard.md"
    write_atomically(page, make_page(entries, home.parent).encode())
    results.print(f"page: {page} ({len(entries)} defences)", markup=False, soft_wrap=True)
    if html:
        from thistle.leaderboard.report import write_report_page

        results.print(f"report: {write_report_page(entries, Path(html).expanduser())}", markup=False, soft_wrap=True)


def _searches(folder: Path) -> list[Path]:
    """The folder, or the searches directly inside it."""
    from thistle.worst_case.document import STRESS

    if (folder / STRESS).is_file():
        return [folder]
    below = sorted(path.parent for path in folder.glob(f"*/{STRESS}"))
    if not below:
        raise UserError(f"{folder}: no {STRESS} there, nor in its subfolders; name a folder made by thistle stress")
    return below
