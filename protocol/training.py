"""What the server asks of a client in a round, and what the client answers: the keys of both, written once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from thistle.protocol.records import ARRAYS, MEMORY, METRICS

ROUND, RATE, PROXIMAL = "server-round", "lr", "proximal-mu"
"""As Flower's own strategies and examples write them."""
REPORT_LOSSES, REPORT_CLASSES = "report-losses", "report-classes"
CLASSES, SHAPE, SCHEME = "classes", "shape", "scheme"
EXCHANGE, RANK = "exchange", "rank"
FACTORS = "factors"
TERMS = "client."
"""What the keys of `terms` begin with."""

EXAMPLES, SECONDS, LOSS = "num-examples", "seconds", "loss"
BEFORE, AFTER, COUNTS = "loss-before", "loss-after", "class-counts"
ALWAYS, LOSSES = frozenset({EXAMPLES, SECONDS, LOSS}), frozenset({BEFORE, AFTER})
"""The metrics of every reply, and those of one that was asked for its losses."""


@dataclass(frozen=True)
class TrainRequest:
    """The settings that come with the model. Whatever else the server's strategy wrote there is not for our clients."""

    number: int = 0
    """Of the round."""
    lr: float | None = None
    proximal_mu: float = 0.0
    report_losses: bool = False
    report_classes: bool = False
    rank: float | None = None
    """Answer with factors of this rank, a fraction of each layer's full rank; None: with the whole model."""
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    scheme: str = ""
    """What the federation's classes are called, how large its images are, and how rows of a table become values
    (empty: there is no table), for nodes with data of their own."""
    terms: tuple[tuple[str, Any], ...] = ()
    """How the server wants clients to train, by the names of an experiment's settings (`client.objective`, …)."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TrainRequest:
        """From the record that came."""
        rate = config.get(RATE)
        return cls(
            number=int(config.get(ROUND, 0)),
            lr=None if rate is None else float(rate),
            proximal_mu=float(config.get(PROXIMAL, 0.0)),
            report_losses=bool(config.get(REPORT_LOSSES, False)),
            report_classes=bool(config.get(REPORT_CLASSES, False)),
            rank=asked_rank(config),
            classes=tuple(config.get(CLASSES, ())),
            shape=tuple(config.get(SHAPE, ())),
            scheme=str(config.get(SCHEME, "")),
            terms=tuple((key, value) for key, value in config.items() if key.startswith(TERMS)),
        )


def task_facts(classes: tuple[str, ...], shape: tuple[int, ...], scheme: str = "") -> dict[str, Any]:
    """The part of every request that describes the task."""
    return {CLASSES: list(classes), SHAPE: list(shape), **({SCHEME: scheme} if scheme else {})}


def ask_for_factors(config: ConfigRecord, fraction: float) -> ConfigRecord:
    """The same request, to be answered by factors of this rank."""
    return ConfigRecord({**config, EXCHANGE: FACTORS, RANK: fraction})


def asked_rank(config: Mapping[str, Any]) -> float | None:
    """The rank that a request asks for; None: the whole model."""
    return float(config[RANK]) if config.get(EXCHANGE) == FACTORS else None


@dataclass(frozen=True)
class TrainReply:
    """A client's model, or its update's factors where these were asked for, and its numbers."""

    arrays: ArrayRecord
    num_examples: int
    seconds: float
    loss: float
    """The mean over the training."""
    loss_before: float | None = None
    loss_after: float | None = None
    """Of the model that came, and of the one that goes, on all of the client's data."""
    class_counts: list[int] | None = None
    memory: ArrayRecord | None = None
    """What the client wants to know again."""

    def records(self) -> RecordDict:
        """As they travel; what was not asked for is left out."""
        metrics: dict[str, Any] = {EXAMPLES: self.num_examples, SECONDS: self.seconds, LOSS: self.loss}
        asked = {BEFORE: self.loss_before, AFTER: self.loss_after, COUNTS: self.class_counts}
        metrics |= {name: value for name, value in asked.items() if value is not None}
        memory = {} if self.memory is None else {MEMORY: self.memory}
        return RecordDict({ARRAYS: self.arrays, METRICS: MetricRecord(metrics), **memory})
