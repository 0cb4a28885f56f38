"""A SuperNode whose clock is 20 seconds ahead of everybody's."""

from __future__ import annotations

import datetime

from flwr.supercore.date import now
from flwr.supernode import node_auth_http_interceptor as module

AHEAD = datetime.timedelta(seconds=20)


def act() -> None:
    """From now on, in this process."""
    module.now = lambda: now() + AHEAD  # type: ignore[attr-defined]
