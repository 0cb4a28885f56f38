"""The leaderboard as a page of the report: a sweep of defences × attacks × shares, each with its own worst settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_atomically
from thistle.leaderboard.entries import NOBODY, Entry, board_of
from thistle.report.page import file_page
from thistle.report.sweeps import Group, Sweep, as_page

DEFENCE, KIND, SHARE = "strategy.name", "attack.kind", "attack.fraction"


def write_report_page(entries: Mapping[Path, Entry], target: Path) -> Path:
    """One file that needs only a browser."""
    boards: dict[str, list[Entry]] = {}
    for entry in entries.values():
        boards.setdefault(board_of(entry), []).append(entry)
    sweeps = [as_page(_as_sweep(board)) for board in boards.values()]
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    page = file_page({"runs": [], "maps": {}, "sweeps": sweeps, "made": made}, "Thistle: leaderboard")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, page.encode())
    except OSError as error:
        raise UserError(f"--html {target}: cannot be written: {error.strerror}") from None
    return target


def _as_sweep(board: list[Entry]) -> Sweep:
    """Backdoors are left out: a map has one measure, and theirs is not the accuracy."""
    groups = [
        Group(
            {DEFENCE: entry["defence"], KIND: cell["attack"], SHARE: f"{cell['fraction']:g}"},
            {"accuracy": [run["final_accuracy"] for run in cell["runs"]]},
            [],
        )
        for entry in board
        for cell in entry["cells"]
        if cell["suite"] != "backdoor" and cell["cell"] != NOBODY
    ]
    axes = {key: sorted({group.axes[key] for group in groups}) for key in (DEFENCE, KIND, SHARE)}
    first = board[0]
    cells = [{"status": "finished"} for group in groups for _ in group.values["accuracy"]]
    return Sweep(f"leaderboard: {first['experiment']['task.name']}, {first['suite']}", axes, groups, cells, [])
