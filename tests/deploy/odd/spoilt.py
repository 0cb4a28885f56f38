"""A node whose processes may take 16 GiB each; client 6 hangs, client 7 wants more than that.

In the node's superexec it sets the limit, which what this starts inherits; in its fork server it spoils what is forked.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

MOST = 16 * 2**30


def act() -> None:
    """From now on, in this process."""
    if any(Path(word).name == "flower-superexec" for word in sys.orig_argv[:4]):
        resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
        return
    from flwr.clientapp import ClientApp

    real = ClientApp.__call__

    def call(self: ClientApp, message: Any, context: Any) -> Any:
        spoil(sys.modules["thistle.client.app"])
        return real(self, message, context)

    ClientApp.__call__ = call  # type: ignore[method-assign]


def spoil(app: Any) -> None:
    """The app that came with the message, in this process."""
    real = app._answer

    def answer(content: Any, client: int, *more: Any) -> Any:
        if client == 6:
            time.sleep(600)
        if client == 7:
            bytearray(MOST)
        return real(content, client, *more)

    app._answer = answer
