"""How long to wait before the next look at something that will come: the longer it has not come, the longer."""

from __future__ import annotations

SHARE = 10


def pause(waited: float, least: float, most: float) -> float:
    """Seconds: a tenth of the time waited so far, so that looking again adds a tenth to it at most."""
    return min(max(waited / SHARE, least), most)
