"""Flower's programs, made to endure a busy machine: what this rests on in Flower is there."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from flwr.supercore import sql_mixin

from thistle.deploy.patient import wait_for_locks


def test_flowers_databases_wait_longer_for_a_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    wait_for_locks()
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        sql_mixin._set_sqlite_pragmas(database, None)
        assert database.execute("PRAGMA busy_timeout").fetchone() == (25_000,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("program", ["flower-superlink", "flower-superexec"])
def test_it_becomes_the_program(program: str) -> None:
    command = [sys.executable, "-m", "thistle.deploy.patient", program, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(f"usage: {program}")
