"""The ServerApp's connection to a SuperLink: what it is, how it says that a run is over, and what it sits out.

Flower has no public name for the grid of a deployed federation, none for the exception that says a run was stopped
(a BaseException, raised in whatever thread asks), and no setting for the answers after which its clients ask again.

What brings Flower's web server and database with it is imported where it is used: an inline run needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from flwr.serverapp import Grid
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.run import RunNotRunningException
from httpx import HTTPError, codes

__all__ = ["HTTPError", "RunNotRunningException", "is_deployed", "sit_out_errors", "when_flower_ends"]

HTTP_GRID = "flwr.superlink.grid.http_grid"


def is_deployed(grid: Grid) -> bool:
    """Whether the nodes behind this grid are real ones: where there is such a grid, its module has been imported."""
    module: Any = sys.modules.get(HTTP_GRID)
    return module is not None and isinstance(grid, module.HttpGrid)


def sit_out_errors() -> None:
    """Try again at HTTP 500 as at 503, in this process: with it a SuperLink answers while its database is locked.

    Flower's clients take it for final: the run, or its heartbeat, would be over.
    """
    from flwr.supercore.retry import http_retry

    http_retry._RETRYABLE_STATUS_CODES |= {codes.INTERNAL_SERVER_ERROR}


def when_flower_ends(action: Callable[[], None]) -> None:
    """Do it before Flower ends this process: it gives five seconds from then on, and may use them up itself."""
    add_exit_handler(action, run_before_force_exit=True)
