"""The numbers of summary.json that take more than a sum: what a run came to, from the lines of its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from thistle.experiments.settings import Attack

Lines = Sequence[dict[str, Any]]
LAST = (
    "class_accuracy",
    "client_accuracy",
    "macro_f1",
    "auc",
    "calibration_error",
    "class_auc",
    "sensitivity",
    "specificity",
    "confusion",
    "site_scores",
)
"""What the summary repeats of the last evaluation."""
ALIVE = 0.5
"""A backdoor whose trigger works less often than this is gone."""
NO_STOP, NEVER_FELL, NO_EVALUATION = "no stop", "never fell", "not evaluated after the stop"
"""Why a backdoor has no lifespan."""


def evaluated(lines: Lines) -> Lines:
    """The rounds that were evaluated."""
    return [line for line in lines if line.get("accuracy") is not None]


def averaged(lines: Lines, window: int) -> int:
    """k: over how many of the last evaluations the end of a run is averaged. Those of its last quarter, at least one
    and at most `window`: a mean over more would say how it learnt, not what it came to."""
    late = [line for line in evaluated(lines) if 4 * line["round"] > 3 * lines[-1]["round"]]
    return max(1, min(window, len(late)))


def accuracies(lines: Lines, window: int) -> dict[str, Any]:
    """Last, best, and the mean of the last k evaluations; under test-time attacks the mean alone."""
    found, k = evaluated(lines), averaged(lines, window)
    values = [line["accuracy"] for line in found]
    robust = [line["robust"] for line in found if line.get("robust")][-k:]
    means = {name: fmean(one[name] for one in robust) for name in (robust or [{}])[0]}
    return {
        "last_accuracy": values[-1],
        "max_accuracy": max(values),
        "final_accuracy": fmean(values[-k:]),
        "evaluations_averaged": k,
        **({"final_robust": means} if means else {}),
        **{name: found[-1][name] for name in LAST if name in found[-1]},
    }


def seconds_of_defence(lines: Lines) -> float | None:
    """The median over the rounds in which there was something to aggregate; None without any."""
    seconds = [line["seconds_defence"] for line in lines if "seconds_defence" in line]
    return median(seconds) if seconds else None


def backdoor(lines: Lines, attack: Attack | None) -> dict[str, Any]:
    """How often the trigger works at the end, and how long it did after the attack's last round; empty where there is
    no backdoor. `attack` None: nobody knows when it stopped."""
    successes = [(line["round"], line["attack_success"]) for line in lines if line.get("attack_success") is not None]
    if not successes:
        return {}
    last = {"attack_success": successes[-1][1]}
    return last if attack is None else {**last, **lifespan(successes, attack.stop)}


def lifespan(successes: Sequence[tuple[int, float]], stop: int) -> dict[str, Any]:
    """Rounds from `stop` to the first evaluation that finds the backdoor gone; 0 if the last one before found it gone.

    None, with the reason, where it never fell or nobody looked. `successes`: round and share, in order.
    """
    after = [(number, success) for number, success in successes if number > stop]
    before = [success for number, success in successes if number <= stop]
    rounds, reason = None, NEVER_FELL
    if not stop or not after:
        reason = NO_EVALUATION if stop else NO_STOP
    elif before and before[-1] < ALIVE:
        rounds = 0
    else:
        rounds = next((number - stop for number, success in after if success < ALIVE), None)
    return {"backdoor_lifespan": rounds, **({"backdoor_lifespan_reason": reason} if rounds is None else {})}
