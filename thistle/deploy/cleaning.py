"""What runs leave behind in a state: installed copies of the app, logs, rows of Flower's database.

The one file that knows the tables of that database; tests/deploy/test_local.py notices an upgrade.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from thistle.deploy.state import State
from thistle.experiments.errors import UserError

OLD_ROWS = (
    "DELETE FROM task_logs WHERE task_id IN (SELECT task_id FROM task WHERE finished_at IS NOT NULL)",
    "DELETE FROM fab WHERE NOT EXISTS (SELECT * FROM task WHERE task.fab_hash = fab.fab_hash AND finished_at IS NULL)",
    "DELETE FROM nonce_store WHERE expires_at < unixepoch()",
)
"""Logs and app bundles of finished tasks; runs, nodes and keys stay."""


def clean(state: State) -> Iterator[str]:
    """Do it; yields a line for each thing that was done."""
    with state.held():
        for folder in (state.home / "apps", state.logs):
            size = _size(folder)
            shutil.rmtree(folder, ignore_errors=True)
            if size:
                yield f"{folder}: {size / 2**20:.1f} MiB"
        if state.access_log.is_file():
            yield f"{state.access_log}: {state.access_log.stat().st_size / 2**20:.1f} MiB"
            state.access_log.unlink()
        if state.database.is_file():
            yield _compact(state.database)


def _compact(path: Path) -> str:
    before = _size(path.parent, f"{path.name}*")
    try:
        with closing(sqlite3.connect(path)) as database:
            for statement in OLD_ROWS:
                database.execute(statement)
            database.commit()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("VACUUM")
    except sqlite3.Error as error:
        raise UserError(f"{path}: {error}") from None
    return f"{path}: {before / 2**20:.1f} MiB, now {_size(path.parent, f'{path.name}*') / 2**20:.1f}"


def _size(folder: Path, pattern: str = "**/*") -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())
