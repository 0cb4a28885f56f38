"""Becomes `server/echo.py` of a staged app: the product's ServerApp, knowing the model."""

from __future__ import annotations

import thistle.tasks.echo  # noqa: F401  # the model
from thistle.server.app import app

__all__ = ["app"]
