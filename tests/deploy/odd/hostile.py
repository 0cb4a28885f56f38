"""A ClientApp's process whose clients send hostile replies: client FIRST the first kind, the next the second, …"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import RecordDict

from exchange import cohort
from tests.hostile import HOSTILE

FIRST = 6
KINDS = [name for name, (_, reason) in HOSTILE.items() if reason != "buffers"]
"""The model of these tests has no buffers."""

real = cohort.pack_replies


def pack(replies: Iterable[tuple[int, Any]]) -> RecordDict:
    """What the host would send, spoilt."""
    spoilt = []
    for client, content in replies:
        attack, _ = HOSTILE[KINDS[client - FIRST]]
        spoilt.append((client, attack(content) if isinstance(content, RecordDict) else content))
    return real(spoilt)


def act() -> None:
    """From now on, in this process."""
    cohort.pack_replies = pack
