"""How often a SuperNode looks for messages, for replies and for work: Flower has no settings for it.

It looks for messages every 3 s, and every 0.5 s for its ClientApp's reply; its superexec must ask again and again
whether there is something to do. Here it looks soon after it last had a message and then less and less often, at the
reply all the time (that is in its own memory), and a superexec that asks is answered as soon as there is something.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from thistle.protocol.pace import pause

IDLE, WAITING = 3.0, 0.5
"""What Flower sleeps: without a message; for the reply to one, or for a piece of it."""
SOON = 0.2
"""Seconds: each look for messages is a request to the SuperLink, and locks its database."""
OFTEN = 0.02
"""Seconds between two looks into this process's own memory."""
PATIENCE = 2.0
"""Seconds after which a superexec is told that there is nothing: the SuperNode ends no sooner."""


class Clock:
    """Stands for the module `time` in Flower's loop."""

    def __init__(self) -> None:
        self.worked = time.monotonic()
        """When there was last a message."""

    def sleep(self, seconds: float) -> None:
        """Flower would sleep so long."""
        if seconds < IDLE:
            self.worked = time.monotonic()
            time.sleep(min(seconds, OFTEN))
        else:
            time.sleep(pause(time.monotonic() - self.worked, SOON, IDLE))


def hurry() -> None:
    """From now on, in this process."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.servicer.runtime import runtime_handlers

    theirs = runtime_handlers.acquire_task

    def acquire(request: Any, state: Any) -> Any:
        """Wait for a task a while; in a thread of its own, so that nobody waits with it."""
        until = time.monotonic() + PATIENCE
        while not (found := theirs(request, state)).token and time.monotonic() < until:
            time.sleep(OFTEN)
        return found

    runtime_handlers.acquire_task = acquire
    loop.time = SimpleNamespace(sleep=Clock().sleep)  # type: ignore[attr-defined, assignment]
