"""When a run is over: after its last round, or earlier where `stop.accuracy` or `stop.patience` say so.

Decided by the metrics alone, which a resumed run has as well: it ends where it would have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thistle.experiments.experiment import Experiment


def why_ended(experiment: Experiment, rounds: Sequence[dict[str, Any]]) -> str:
    """`rounds`, `accuracy` or `patience` after these lines of the metrics; empty: the run goes on."""
    if len(rounds) >= experiment.rounds:
        return "rounds"
    stop = experiment.stop
    accuracies = [line["accuracy"] for line in rounds if line.get("accuracy") is not None]
    if stop.accuracy and accuracies and accuracies[-1] >= stop.accuracy:
        return "accuracy"
    if stop.patience and accuracies:
        best = accuracies.index(max(accuracies))
        if len(accuracies) - 1 - best >= stop.patience:
            return "patience"
    return ""
