"""python -m thistle.deploy.patient PROGRAM ARGUMENTS...: a program of Flower's that endures a busy machine.

It waits longer for a lock on its database, and when it hears a 500 it asks again. Nothing else is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points


def become(*changes: Callable[[], None]) -> None:
    """Make these changes in this process, then be the program that its arguments name."""
    del sys.argv[0]
    for change in changes:
        change()
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(program.load()())


def main() -> None:
    """Become the program."""
    from thistle.flower_compat.database import wait_for_locks
    from thistle.flower_compat.runtime_api import sit_out_errors

    become(sit_out_errors, wait_for_locks)


if __name__ == "__main__":
    main()
