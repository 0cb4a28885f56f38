"""Looking again costs a tenth of the wait at most, and neither too much at first nor too long at the end."""

from __future__ import annotations

from thistle.protocol.pace import pause


def test_a_pause_is_a_tenth_within_bounds() -> None:
    assert [pause(waited, 0.1, 3.0) for waited in (0.0, 0.5, 20.0, 1e6)] == [0.1, 0.1, 2.0, 3.0]
