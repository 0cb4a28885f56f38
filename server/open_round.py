"""A round that is over except for the evaluation of its model, which may continue while the next round trains.

Its line is in the checkpoint until it is in metrics.jsonl: a run that was killed in between evaluates the same model
again when it is continued.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thistle.protocol.verdict import Verdict
from thistle.tasks.threads import Background

Measured = dict[str, Any]


class OpenRound:
    """Its line so far and its verdicts."""

    def __init__(self, line: Mapping[str, Any], verdicts: Sequence[Verdict], measure: Callable[[], Measured]) -> None:
        """`measure`: evaluates its model."""
        self.line, self.verdicts, self.measure = dict(line), list(verdicts), measure
        self._background: Background[tuple[Measured, float]] | None = None

    @property
    def number(self) -> int:
        """Which round it is."""
        return int(self.line["round"])

    def begin(self) -> None:
        """Evaluate meanwhile."""
        self._background = Background(self._evaluate)

    def _evaluate(self) -> tuple[Measured, float]:
        started = time.perf_counter()
        measured = self.measure()
        return measured, time.perf_counter() - started

    def close(self) -> dict[str, Any]:
        """The whole line, once the evaluation is over; what had not begun counts as the round's own time."""
        measured, seconds = self._background.result() if self._background else self._evaluate()
        whole = self.line["seconds"] + (0.0 if self._background else seconds)
        return {**self.line, **measured, "seconds_evaluation": seconds, "seconds": whole}

    def cancel(self) -> None:
        """Nobody waits for the evaluation any more."""
        if self._background:
            self._background.cancel()

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"line": self.line, "verdicts": [vars(verdict) for verdict in self.verdicts]}

    @classmethod
    def restore(cls, state: Mapping[str, Any], measure: Callable[[], Measured]) -> OpenRound:
        """From a checkpoint."""
        return cls(state["line"], [Verdict(**said) for said in state["verdicts"]], measure)
