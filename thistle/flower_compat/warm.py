"""Warm ClientApps: whether this machine can have them, what they are forked from, and whether that answers."""

from __future__ import annotations

import sys
from pathlib import Path

from thistle.flower_compat.warm_launch import VARIABLE as WARM
from thistle.flower_compat.warm_launch import greeted

__all__ = ["FORK_SERVER", "WARM", "is_warm", "possible"]

FORK_SERVER = Path(__file__).with_name("fork_server.py")


def possible() -> bool:
    """Elsewhere it is not safe to fork a process with torch in it, and no process hears of its parent's death."""
    return sys.platform == "linux"


def is_warm(socket: str) -> bool:
    """Whether a fork server greets us there."""
    connection = greeted(socket)
    if connection is None:
        return False
    connection.close()
    return True
