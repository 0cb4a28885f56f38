"""What the server asks of sites with data of their own besides training: sums of their columns, how good a model is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from thistle.protocol.records import METRICS
from thistle.protocol.training import EXAMPLES, LOSS

COLUMNS = "columns"
"""The query by which a site sums up its table, and the record of its answer."""
SUMMARY = "summary"
LONGEST = 5_000_000
"""Characters of a summary."""
ACCURACY = "accuracy"


def summary_records(text: str) -> RecordDict:
    """A site's answer; empty: it has no table."""
    return RecordDict({COLUMNS: ConfigRecord({SUMMARY: text})})


def summary_text(content: RecordDict) -> str:
    """What an answer holds, bounded; empty where that is nothing of ours."""
    record = content.config_records.get(COLUMNS)
    text = record.get(SUMMARY, "") if record is not None else ""
    return text if isinstance(text, str) and len(text) <= LONGEST else ""


@dataclass(frozen=True)
class SiteScore:
    """How good a model is on what a site holds out: numbers are all that leaves the site."""

    accuracy: float
    loss: float
    examples: int

    def records(self) -> RecordDict:
        """As they travel."""
        return RecordDict({METRICS: MetricRecord({ACCURACY: self.accuracy, LOSS: self.loss, EXAMPLES: self.examples})})

    @classmethod
    def read(cls, records: Mapping[str, object]) -> SiteScore | None:
        """From a reply; None where it is not what we asked for."""
        said = records.get(METRICS)
        if type(said) is not MetricRecord:
            return None
        accuracy, loss, examples = said.get(ACCURACY), said.get(LOSS), said.get(EXAMPLES)
        if not (isinstance(accuracy, float) and isinstance(loss, float) and type(examples) is int):
            return None
        if not (0 <= accuracy <= 1 and math.isfinite(loss) and loss >= 0 and 0 < examples < 10**9):
            return None
        return cls(accuracy, loss, examples)
