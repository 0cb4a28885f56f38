"""The rules of a reply's records and metrics: each function checks one thing or raises Rejected.

Only names the server knows are looked up. What a sender adds is counted or dropped, never walked through, so that
neither the number of its keys nor their length costs anything here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from thistle.protocol.answer import Number
from thistle.protocol.records import ARRAYS, LARGEST_LOSS, METRICS
from thistle.protocol.training import COUNTS, EXAMPLES

MOST_EXAMPLES = 10**9


class Rejected(Exception):
    """A reply broke a rule. The text is the reason: the rule's name, a colon, a detail."""


@dataclass(frozen=True)
class Expected:
    """What this round's replies may hold besides the model.

    Flower's own strategies raise when replies differ in their metrics: under them, require every metric.
    """

    metrics: frozenset[str]
    required: frozenset[str]
    logged: frozenset[str] = frozenset()
    """Those that nothing is decided by. An honest client's loss on a model that others have ruined is huge, or not
    even a number: here it counts as the largest that is believed, which a liar may report as well."""
    class_counts: bool = False

    @cached_property
    def plain(self) -> list[str]:
        """The metrics that are mere numbers."""
        return sorted(self.metrics - {EXAMPLES, COUNTS})


def check_records(records: Mapping[str, object]) -> tuple[ArrayRecord, MetricRecord]:
    """Exactly one array record and one metric record, by their names."""
    if len(records) != 2:
        raise Rejected(f"records: should be {ARRAYS} and {METRICS}")
    arrays, metrics = records.get(ARRAYS), records.get(METRICS)
    if type(arrays) is not ArrayRecord:
        raise Rejected(f"records: {ARRAYS} is not an ArrayRecord")
    if type(metrics) is not MetricRecord:
        raise Rejected(f"records: {METRICS} is not a MetricRecord")
    return arrays, metrics


def read_metrics(record: MetricRecord, expected: Expected, classes: int, cap: int) -> dict[str, Number]:
    """The known metrics, checked; num-examples is at most `cap`, and class counts shrink with it."""
    examples = _examples(record.get(EXAMPLES))
    capped = min(examples, cap)
    known: dict[str, Number] = {EXAMPLES: capped}
    for name in expected.plain:
        if name in record:
            known[name] = _number(name, record[name], name in expected.logged)
        elif name in expected.required:
            raise Rejected(f"metrics: {name} is missing")
    if expected.class_counts:
        counts = _class_counts(record.get(COUNTS), classes, examples)
        known[COUNTS] = [count * capped // examples for count in counts]
    return known


def _examples(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_EXAMPLES:
        raise Rejected(f"num-examples: should be an integer from 1 to {MOST_EXAMPLES}, not {_brief(value)}")
    return value


def _number(name: str, value: object, logged: bool) -> float:
    if not isinstance(value, int | float) or type(value) not in (int, float, np.float64):
        raise Rejected(f"metrics: {name} is not a number")
    largest = LARGEST_LOSS if "loss" in name else sys.float_info.max
    smallest = 0.0 if "loss" in name else -largest
    if logged and not value <= largest:  # nan too
        return largest
    if not smallest <= value <= largest:  # also false for nan
        raise Rejected(f"metrics: {name} is {_brief(value)}")
    return float(value)


def _class_counts(value: object, classes: int, examples: int) -> list[int]:
    if type(value) is not list or len(value) != classes:
        raise Rejected(f"class-counts: should be a list of {classes} integers")
    if any(type(count) is not int or count < 0 for count in value):
        raise Rejected("class-counts: should be integers of 0 or more")
    if sum(value) != examples:
        raise Rejected(f"class-counts: the sum is {_brief(sum(value))}, not num-examples = {examples}")
    return value


def _brief(value: object) -> str:
    """A number as it came, of anything else (a list could be long) the type."""
    return str(value)[:40] if type(value) in (int, float) else type(value).__name__
