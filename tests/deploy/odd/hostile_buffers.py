"""As odd.hostile, with what is hostile to batch norm's statistics."""

from __future__ import annotations

from functools import partial

from tests.deploy.odd.hostile import BUFFERS, pack
from thistle.protocol import cohort


def act() -> None:
    """From now on, in this process."""
    cohort.pack_replies = partial(pack, kinds=BUFFERS)
