"""python -m thistle.deploy.patient PROGRAM ARGUMENTS...: a program of Flower's that endures a busy machine.

A SuperLink waits 5 s for a lock on its database and then answers HTTP 500: nodes lose their replies, a superexec ends
and takes its ServerApps with it. Here it waits longer, and whoever hears a 500 asks again. Nothing else is changed;
tests/thistle/test_patient.py notices an upgrade.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

LOCK = "busy_timeout", "25000"
"""Milliseconds: less than the 30 s after which Flower's clients hang up, and ask again."""


def wait_for_locks() -> None:
    """Of databases that this process will open."""
    from flwr.supercore import constant, sql_mixin

    others = [pragma for pragma in constant.SQLITE_PRAGMAS if pragma[0] != LOCK[0]]
    sql_mixin.SQLITE_PRAGMAS = (LOCK, *others)  # type: ignore[attr-defined, assignment]


def main() -> None:
    """Become the program."""
    del sys.argv[0]
    from thistle.server.remote import sit_out_errors

    sit_out_errors()
    wait_for_locks()
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(program.load()())


if __name__ == "__main__":
    main()
