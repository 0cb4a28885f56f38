"""The three records of our messages, by name. (Flower's typed views copy everything at each look.)"""

from __future__ import annotations

from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"
MEMORY, TIMES = "memory", "times"
"""What attackers want to know again when they are next asked; in it, how often this one has been asked."""
DEFENCE = "defence"
"""The strategy's state, sent to attackers that know all of it."""
LARGEST_LOSS = 100.0
"""What a client may report; of a damaged model it reports this much, however bad it is."""


def arrays_of(message: Message) -> ArrayRecord:
    """The model, or what was asked for in its place."""
    return cast(ArrayRecord, message.content[ARRAYS])


def metrics_of(message: Message) -> MetricRecord:
    """A reply's numbers."""
    return cast(MetricRecord, message.content[METRICS])


def config_of(message: Message) -> ConfigRecord:
    """A request's settings."""
    return cast(ConfigRecord, message.content[CONFIG])
