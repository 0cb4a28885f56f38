"""python -m thistle.deploy.patient PROGRAM ARGUMENTS...: a program of Flower's that endures a busy machine.

It waits longer for a lock on its database, and when it hears a 500 it asks again. Nothing else is changed.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points


def main() -> None:
    """Become the program."""
    del sys.argv[0]
    from thistle.flower_compat.database import wait_for_locks
    from thistle.flower_compat.runtime_api import sit_out_errors

    sit_out_errors()
    wait_for_locks()
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(program.load()())


if __name__ == "__main__":
    main()
