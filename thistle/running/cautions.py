"""A warning about θ and f with few participants: a hospital's honest work may be discarded in every round."""

from __future__ import annotations

from thistle.experiments.experiment import Experiment
from thistle.strategies.build import chosen

FEW = 10
"""From this many clients per round on, a simulation gets no warning about its θ or f."""
WISER = "strategy.name = evidence leaves out only clients with evidence against them"


def cautions(experiment: Experiment, replies: int, who: str = "clients") -> list[str]:
    """One line for each setting that does not suit this many replies per round."""
    named, wanted = chosen(experiment), experiment.strategy
    least = named.least_updates()
    if replies < least:
        return [
            f"strategy.name = {wanted.name} needs {least} updates per round, and {replies} {who} give {replies}: "
            "the model would not change; use more of them, or choose another strategy"
        ]
    count, setting = named.always_excludes(replies)
    if count:
        return [
            f"{setting}: of {replies} {who}, {count} {_is(count)} left out in every round, "
            f"even if all are honest; {WISER}"
        ]
    return [f"{setting}: of {replies} {who}, nobody is ever left out, attackers included; {WISER}"] if setting else []


def few(experiment: Experiment) -> list[str]:
    """The same for a simulation, where it has few clients per round."""
    count = experiment.client.per_round
    return cautions(experiment, count) if count < FEW else []


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
