"""A SuperLink's database as the installed Flower makes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore import sql_mixin
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from thistle.deploy.cleaning import clean
from thistle.deploy.state import State
from thistle.flower_compat.database import wait_for_locks


def make_database(path: Path) -> SqlLinkState:
    """By Flower's own migrations."""
    link = SqlLinkState(str(path), NoOpFederationManager(), ObjectStoreFactory().store())
    link.initialize()
    return link


def test_flowers_databases_wait_longer_for_a_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    wait_for_locks()
    link = make_database(tmp_path / "state.db")
    assert link.query("PRAGMA busy_timeout") == [{"timeout": 25_000}]
    assert link.query("PRAGMA journal_mode") == [{"journal_mode": "wal"}]


def test_cleaning_keeps_what_is_not_finished(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    state.create()
    (state.home / "apps" / "old").mkdir(parents=True)
    (state.home / "apps" / "old" / "code.py").write_text("x = 1\n")
    make_database(state.database)
    with closing(sqlite3.connect(state.database)) as database:
        database.executescript(
            "INSERT INTO task (task_id, type, run_id, fab_hash, pending_at, finished_at)"
            " VALUES (1, 'app', 1, 'a', '2026-01-01', '2026-01-02'), (2, 'app', 2, 'b', '2026-01-01', NULL);"
            "INSERT INTO task_logs (timestamp, task_id, log) VALUES (1, 1, 'x'), (2, 2, 'y');"
            "INSERT INTO fab (fab_hash, content, verifications) VALUES ('a', 'x', ''), ('b', 'y', '');"
            "INSERT INTO nonce_store (namespace, nonce, expires_at) VALUES ('n', '1', 1), ('n', '2', 1e12);"
        )
    state.gateway.mkdir()
    state.access_log.write_text("10.0.0.1\n")
    assert len(list(clean(state))) == 3
    assert not (state.home / "apps").exists() and not state.access_log.exists()
    with closing(sqlite3.connect(state.database)) as database:
        assert database.execute("SELECT log FROM task_logs").fetchall() == [("y",)]
        assert database.execute("SELECT fab_hash FROM fab").fetchall() == [("b",)]
        assert database.execute("SELECT nonce FROM nonce_store").fetchall() == [("2",)]
        assert database.execute("SELECT count(*) FROM task").fetchone() == (2,)
