"""A SuperLink's database: how long it waits for a lock, and which rows nobody needs any more.

A SuperLink waits 5 s for a lock on its database and then answers HTTP 500: nodes lose their replies, a superexec ends
and takes its ServerApps with it. There is no setting for it. Nor does Flower ever delete logs and app bundles.
"""

from __future__ import annotations

LOCK = "busy_timeout", "25000"
"""Milliseconds: less than the 30 s after which Flower's clients hang up, and ask again."""

OLD_ROWS = (
    "DELETE FROM task_logs WHERE task_id IN (SELECT task_id FROM task WHERE finished_at IS NOT NULL)",
    "DELETE FROM fab WHERE NOT EXISTS (SELECT * FROM task WHERE task.fab_hash = fab.fab_hash AND finished_at IS NULL)",
    "DELETE FROM nonce_store WHERE expires_at < unixepoch()",
)
"""Logs and app bundles of finished tasks; runs, nodes and keys stay."""


def wait_for_locks() -> None:
    """Of databases that this process will open: longer than Flower would."""
    from flwr.supercore import constant, sql_mixin

    others = [pragma for pragma in constant.SQLITE_PRAGMAS if pragma[0] != LOCK[0]]
    sql_mixin.SQLITE_PRAGMAS = (LOCK, *others)  # type: ignore[attr-defined, assignment]
