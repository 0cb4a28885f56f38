"""What runs leave behind in a state: installed copies of the app, logs, rows of Flower's database."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from thistle.deploy.state import State
from thistle.experiments.errors import UserError
from thistle.flower_compat.database import OLD_ROWS


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
