"""The ServerApp: the round loop, guard, cohort grid, evaluation, recorder, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thistle.server.guard.guarded import Guarded

__all__ = ["Guarded"]


def __getattr__(name: str) -> Any:
    """Imported on first use: most of this room does not need torch and Flower's strategies."""
    if name in __all__:
        from thistle.server.guard import guarded

        return getattr(guarded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
