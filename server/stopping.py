"""When a run is over: after its last round, or earlier where `stop.accuracy`, `.patience` or `.epsilon` say so.

Decided by the metrics alone, which a resumed run has as well: it ends where it would have ended. A run that learns
nothing any more has failed (`stop.lost-rounds`); when it is continued, it tries the rounds that it lost again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Stop
from thistle.protocol.verdict import Verdict
from thistle.server.guard.casting import NONE, NOT_FINITE

NEXT = ("privacy.next", "privacy.local-next")
"""ε after one more round."""


def in_rounds(count: int) -> str:
    """`1 round`, `3 rounds`."""
    return f"{count} round{'s' * (count != 1)}"


def is_spent(stop: Stop, line: dict[str, Any]) -> bool:
    """Whether one more round would take more privacy than there is."""
    return 0 < stop.epsilon < max(line.get(key) or 0.0 for key in NEXT)


def why_ended(experiment: Experiment, rounds: Sequence[dict[str, Any]]) -> str:
    """`rounds`, `accuracy`, `patience` or `epsilon` after these lines of the metrics; empty: the run goes on."""
    if len(rounds) >= experiment.rounds:
        return "rounds"
    stop = experiment.stop
    if any(is_spent(stop, line) for line in rounds):
        return "epsilon"
    accuracies = [line["accuracy"] for line in rounds if line.get("accuracy") is not None]
    if stop.accuracy and accuracies and accuracies[-1] >= stop.accuracy:
        return "accuracy"
    if stop.patience and accuracies:
        best = accuracies.index(max(accuracies))
        if len(accuracies) - 1 - best >= stop.patience:
            return "patience"
    return ""


def is_lost(stop: Stop, line: dict[str, Any]) -> bool:
    """Whether the model learnt nothing in a round, for a reason that counts."""
    return "kept" in line and (stop.lost_if_rejected or not _is_destroyed(line))


def _is_destroyed(line: dict[str, Any]) -> bool:
    """Whether it was the guard that left nothing to learn from, or too little for the strategy: everybody did their
    work, and it is of no use."""
    return line["kept"] == NOT_FINITE or (line["rejected"] > line["accepted"] and not line["failed"])


def why_lost(line: dict[str, Any], verdicts: Sequence[Verdict]) -> str:
    """What a round came to nothing for, and the first client's error."""
    if not verdicts:
        return "no client could be asked"
    kept = "the strategy gave no model" if line["kept"] == NONE else str(line["kept"])
    unheard = [verdict for verdict in verdicts if verdict.verdict in ("failed", "rejected")]
    if not unheard:
        return kept
    words = {"failed": "clients failed", "rejected": "replies were rejected"}
    counts = [f"{line[kind]} of {len(verdicts)} {text}" for kind, text in words.items() if line[kind]]
    reasons = [*([] if len(unheard) == len(verdicts) else [kept]), *counts]
    first = unheard[0]
    who = f"client {first.client}" + (f" of {first.site}" if first.site else "")
    return f"{', '.join(reasons)}; the first: {who}: {first.reason.removeprefix('failed: ')}"
