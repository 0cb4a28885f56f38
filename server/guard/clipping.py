"""Between guard and strategy: no accepted update stays longer than a multiple of what has been usual lately.

The guard's own bound is for what is absurd, 100·max(1, ‖x‖), and a mean follows a single reply just below it wherever
it leads. Here every update longer than S is scaled down to S, whatever the strategy, Flower's own included:

    S = factor · the lower median of the lengths of all updates accepted in the last WINDOW rounds, this one included

While at most half of those replies are hostile, S is at most factor times the longest honest update among them, and at
least factor times the shortest. Lengths go into the median as they came, so clipping in one round never tightens the
next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord

from thistle.protocol.layout import BLOCK, Layout, view
from thistle.server.guard.inspection import Inspection
from thistle.server.guard.payload import Arrays

WINDOW = 5  # rounds: long enough for a round with few replies, short enough to follow lengths as they shrink


@dataclass
class Clipping:
    """Scales updates down to the bound, and remembers the lengths that the next bounds need."""

    factor: float
    layout: Layout
    models: bool
    """Whether the strategy goes by the clients' models, not by the block of updates."""
    recent: list[np.ndarray] = field(default_factory=list)
    """For each of the last rounds with replies, their lengths in ascending order."""

    def apply(self, inspection: Inspection, sent: ArrayRecord) -> tuple[float, dict[int, float]]:
        """Clip in place; returns S, and for each client that was clipped what its update was multiplied by."""
        lengths = np.array([length(row) for row in inspection.updates], np.float64)
        if not len(lengths):
            return math.nan, {}
        self.recent = [*self.recent, np.sort(lengths)][-WINDOW:]
        bound = self.factor * lower_median(np.concatenate(self.recent))
        parts: dict[int, float] = {}
        for index in np.flatnonzero(lengths > bound).tolist():
            answer, update = inspection.answers[index], inspection.updates[index]
            parts[answer.client] = bound / float(lengths[index])
            update *= np.float32(parts[answer.client])
            if self.models:
                arrays = {**answer.arrays, **self._model(sent, update)}
                inspection.answers[index] = replace(answer, arrays=arrays)
        return bound, parts

    def _model(self, sent: ArrayRecord, update: np.ndarray) -> Arrays:
        """The trained arrays that were sent, plus the update."""
        arrays, start = {}, 0
        for entry in self.layout.trained:
            change = update[start : start + entry.size].reshape(entry.shape)
            arrays[entry.name] = np.asarray(view(sent[entry.name]) + change, dtype=entry.numpy_dtype)
            start += entry.size
        return arrays

    def state(self) -> Arrays:
        """For the checkpoint."""
        return {f"{index:06d}": lengths for index, lengths in enumerate(self.recent)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what `state` gave."""
        self.recent = [state[name] for name in sorted(state)]


def length(update: np.ndarray) -> float:
    """‖update‖: blocks that stay in the cache are summed in float32, and their sums in float64."""
    blocks = (update[low : low + BLOCK] for low in range(0, len(update), BLOCK))
    return math.sqrt(sum(float(np.dot(block, block)) for block in blocks))


def lower_median(lengths: np.ndarray) -> float:
    """The middle one, of two the smaller: always a length that somebody sent."""
    middle = (len(lengths) - 1) // 2
    return float(np.partition(lengths, middle)[middle])
