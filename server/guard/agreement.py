"""What most replies of a round have in common, where the app is not ours: its metrics, its records' names.

Flower's strategies raise when one reply differs from the others. So what more than half of the replies have is required
of every one, and what fewer have is dropped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from thistle.protocol.answer import Number
from thistle.protocol.cohort import Record
from thistle.protocol.records import ARRAYS, METRICS
from thistle.server.guard.checks import MOST_EXAMPLES, Rejected

MOST_METRICS = 1000
"""Per reply: more are not looked at."""

Records = Mapping[str, Record]
One = TypeVar("One", bound=Record)
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Agreement:
    """What this round's replies should hold."""

    metrics: Mapping[str, int | None]
    """A metric's name → None where it is a number, or its length where it is a list."""
    weight: str | None
    """The metric that a strategy weights by."""
    configs: frozenset[str] = frozenset()
    arrays_name: str = ARRAYS
    metrics_name: str = METRICS

    @classmethod
    def of(cls, replies: Iterable[Records], weight: str | None) -> Agreement:
        """Of the replies that came, whatever they are worth."""
        contents = list(replies)
        kinds = _most([_kinds(content) for content in contents])
        configs = _most([_names(content, ConfigRecord) for content in contents])
        return cls(
            {name: length for name, length in kinds if name != weight},
            weight,
            frozenset(configs),
            _usual([_names(content, ArrayRecord) for content in contents], ARRAYS),
            _usual([_names(content, MetricRecord) for content in contents], METRICS),
        )

    def read_numbers(self, record: MetricRecord, cap: int) -> dict[str, Number]:
        """The agreed metrics, all finite, in the reply's own order; the weight is at most `cap`."""
        if len(record) > MOST_METRICS:
            raise Rejected(f"metrics: {len(record)} of them, at most {MOST_METRICS} are read")
        for name in self.metrics:
            if name not in record:
                raise Rejected(f"metrics: {name} is missing")
        numbers: dict[str, Number] = {}
        if self.weight is not None:
            numbers[self.weight] = min(_weight(self.weight, record.get(self.weight)), cap)
        for name, length in self.metrics.items():
            numbers[name] = _finite(name, record[name], length)
        return {name: numbers[name] for name in record if name in numbers}

    def check_configs(self, records: Records) -> None:
        """The config records that most replies have are there. What they say is for the strategy to judge."""
        for name in self.configs:
            if type(records.get(name)) is not ConfigRecord:
                raise Rejected(f"records: {name} is missing")


def only(records: Records, kind: type[One]) -> One:
    """The one record of this kind, whatever its name."""
    found = [record for record in records.values() if type(record) is kind]
    if len(found) != 1:
        raise Rejected(f"records: {len(found)} of type {kind.__name__} instead of one")
    return found[0]


def _names(records: Records, kind: type[Record]) -> list[str]:
    return [name for name, record in records.items() if type(record) is kind]


def _kinds(records: Records) -> list[tuple[str, int | None]]:
    """Of a reply's metrics: name and kind."""
    found = [record for record in records.values() if type(record) is MetricRecord]
    if len(found) != 1 or len(found[0]) > MOST_METRICS:
        return []
    return [(name, len(value) if isinstance(value, list) else None) for name, value in found[0].items()]


def _most(lists: Sequence[Iterable[Item]]) -> list[Item]:
    """What more than half of the lists hold."""
    counts = Counter(item for items in lists for item in set(items))
    order = dict.fromkeys(item for items in lists for item in items)
    return [item for item in order if counts[item] > len(lists) / 2]


def _usual(names: Sequence[Sequence[str]], otherwise: str) -> str:
    """The name that most replies use for their one record of a kind."""
    counts = Counter(one[0] for one in names if len(one) == 1)
    return counts.most_common(1)[0][0] if counts else otherwise


def _weight(name: str, value: object) -> int | float:
    if not isinstance(value, int | float) or not 0 < value <= MOST_EXAMPLES:  # false for nan
        brief = str(value)[:40] if isinstance(value, int | float) else type(value).__name__
        raise Rejected(f"{name}: should be a number above 0, at most {MOST_EXAMPLES}, not {brief}")
    return value


def _finite(name: str, value: Number, length: int | None) -> Number:
    values = value if isinstance(value, list) else [value]
    if (len(values) if isinstance(value, list) else None) != length:
        wanted = "a number" if length is None else f"a list of {length} numbers"
        raise Rejected(f"metrics: {name} should be {wanted}")
    if not all(math.isfinite(one) for one in values):
        raise Rejected(f"metrics: {name} is not finite")
    return value
