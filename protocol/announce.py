"""What a deployed run prints: one line of JSON per event, on standard output.

Flower sends a ServerApp's output to any program that asks the SuperLink for it, so that a run can be followed from
machines without access to its folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MARK = "@thistle "


def announce(event: str, **facts: Any) -> None:
    """Say it: `started`, `warning`, `round`, `finished`, `stopped` or `failed`."""
    print(MARK + json.dumps({"event": event, **facts}, allow_nan=False), flush=True)


def heard(line: str) -> Mapping[str, Any] | None:
    """The event in a line of output, if there is one."""
    if not line.startswith(MARK):
        return None
    try:
        event = json.loads(line.removeprefix(MARK))
    except json.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
