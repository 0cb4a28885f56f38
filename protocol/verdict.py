"""The outcome of one client's reply in one round: a line of verdicts.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["accepted", "filtered", "rejected", "failed"]


@dataclass(frozen=True)
class Verdict:
    """accepted; filtered by a strategy's step; rejected by the guard; failed (error, time-out, busy).

    `step` is who excluded it or, if it was accepted, who gave it almost no weight. `score` is a filter's or an
    aggregator's, `threshold` the last score on the side that the filter keeps, `weight` what the update had in the
    aggregate, `rank` the part of its full rank to which it was cut, `clipped` the part of its length that was left
    (None: all). `site` is the name of the real node that runs the client (None in a simulation).
    """

    client: int
    verdict: Kind
    step: str = ""
    score: float | None = None
    threshold: float | None = None
    weight: float | None = None
    rank: float | None = None
    clipped: float | None = None
    reason: str = ""
    site: str | None = None

    @property
    def mattered(self) -> bool:
        """Whether the update had a weight that matters."""
        return self.verdict == "accepted" and not self.step

    def line(self, number: int, time: str = "") -> dict[str, Any]:
        """The object that is written for round `number`, which was over at `time`."""
        return {"round": number, **({"time": time} if time else {}), **vars(self)}
