"""A ClientApp's process whose clients send hostile replies: client FIRST the first kind, the next the second, …"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import RecordDict

from tests.hostile import HOSTILE
from thistle.protocol import cohort

FIRST = 6
BUFFERS = [name for name, (_, reason) in HOSTILE.items() if reason == "buffers"]
"""What only a model with batch norm can be sent."""
KINDS = [name for name in HOSTILE if name not in BUFFERS]

real = cohort.pack_replies


def pack(replies: Iterable[tuple[int, Any]], kinds: list[str] = KINDS) -> RecordDict:
    """What the host would send, spoilt."""
    spoilt = []
    for client, content in replies:
        attack, _ = HOSTILE[kinds[client - FIRST]]
        spoilt.append((client, attack(content) if isinstance(content, RecordDict) else content))
    return real(spoilt)


def act() -> None:
    """From now on, in this process."""
    cohort.pack_replies = pack
