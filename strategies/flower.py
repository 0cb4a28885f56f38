"""Flower's own strategies in our loop, with buffers kept away from them.

A strategy of Flower's treats every array alike: FedAdam's momentum makes batch-norm variances negative, FedAvg turns
counters into fractions, QFedAvg stops at integers. So they see the trained arrays only; buffers are combined as in a
pipeline, over all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Value
from thistle.protocol.answer import Answer
from thistle.protocol.layout import Layout, as_array, to_record, to_state
from thistle.protocol.records import ARRAYS, METRICS
from thistle.protocol.verdict import Verdict
from thistle.strategies.buffers import combine_buffers
from thistle.strategies.memory.state import State, load_state_dict, state_dict


class WithoutBuffers(Strategy):
    """Any Flower strategy, for models that have buffers."""

    def __init__(self, inner: Strategy, layout: Layout, arrays: str = ARRAYS) -> None:
        """`arrays`: the request's record that holds the model."""
        self.inner, self.layout, self.arrays = inner, layout, arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's choice of clients and settings; the whole model goes out."""
        self._sent = arrays
        messages = list(self.inner.configure_train(server_round, self._trained(arrays), config, grid))
        whole: dict[int, RecordDict] = {}
        for message in messages:
            content = message.content
            message.content = whole.setdefault(id(content), RecordDict({**content, self.arrays: arrays}))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The inner strategy's aggregate of what is trained, and the clients' buffers beside it."""
        answered = [reply for reply in replies if reply.has_content()]
        models = [next(iter(reply.content.array_records.items())) for reply in answered]
        records = [record for _, record in models]
        for reply, (name, record) in zip(answered, models, strict=True):
            reply.content = RecordDict({**reply.content, name: self._trained(record)})
        aggregate, summary = self.inner.aggregate_train(server_round, answered)
        if aggregate is None:
            return None, summary
        states = [self._buffers(record) for record in records]
        buffers = combine_buffers(self.layout, states, self._buffers(self._sent))
        whole = {**dict(aggregate), **dict(to_record(buffers))}
        return ArrayRecord({entry.name: whole[entry.name] for entry in self.layout.entries}), summary

    def _trained(self, record: ArrayRecord) -> ArrayRecord:
        return ArrayRecord({entry.name: record[entry.name] for entry in self.layout.trained})

    def _buffers(self, record: ArrayRecord) -> dict[str, Tensor]:
        return to_state(ArrayRecord({entry.name: record[entry.name] for entry in self.layout.buffers}))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy has it."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy has it."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the inner strategy has it."""
        self.inner.summary()


def as_messages(answers: Iterable[Answer], number: int) -> list[Message]:
    """Answers as a strategy of Flower's wants them: messages of our own making."""
    envelope, replies = Message(RecordDict(), 0, "train", group_id=str(number)), []
    for answer in answers:
        arrays = ArrayRecord()
        for name, values in answer.arrays.items():
            arrays[name] = as_array(values)
        envelope.metadata.dst_node_id = answer.client
        content = RecordDict({ARRAYS: arrays, METRICS: MetricRecord(dict(answer.numbers))})
        replies.append(Message(content, reply_to=envelope))
    return replies


def sampling(experiment: Experiment) -> dict[str, Any]:
    """Arguments that tell a strategy of Flower's to sample `client.per-round` clients and to leave evaluation to us."""
    count = experiment.client.per_round
    return {
        "fraction_train": count / experiment.task.clients,
        "min_train_nodes": count,
        "min_available_nodes": count,
        "fraction_evaluate": 0.0,
    }


class Adapter:
    """Any Flower strategy in Thistle's own loop: what a pipeline has, as far as a strategy of another kind can."""

    takes_updates = False
    """It wants the clients' models, as messages."""
    losses_required = True
    """It stops where two replies differ in their keys."""

    def __init__(
        self,
        strategy: Strategy,
        layout: Layout,
        report_losses: bool = False,
        logged: frozenset[str] = frozenset(),
    ) -> None:
        """`logged`: the metrics of a reply that it only averages for the record."""
        self.inner, self.report_losses, self.logged = strategy, report_losses, logged
        self._worker = WithoutBuffers(strategy, layout) if layout.buffers else strategy

    @property
    def verdicts(self) -> Mapping[int, Verdict]:
        """What it says of each client, if it is of a kind that says something."""
        return getattr(self.inner, "verdicts", {})

    @property
    def seconds_learning(self) -> float:
        """What it learnt on server data took, if it is a pipeline that somebody has changed."""
        return float(getattr(self.inner, "seconds_learning", 0.0))

    def terms(self) -> dict[str, Value]:
        """Nothing: it writes into the config itself."""
        return {}

    def fit(self, count: int) -> None:
        """Let it sample this many clients; it would wait forever for more than there are."""
        inner: Any = self.inner
        inner.min_train_nodes = inner.min_available_nodes = count

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As it does."""
        return self._worker.configure_train(server_round, arrays, config, grid)

    def look_ahead(self) -> None:
        """Nothing to do while the clients train."""

    def penalise(self, clients: Iterable[int]) -> None:
        """It keeps no reputation of its own, unless it is a pipeline that somebody has changed."""
        penalise: Callable[[Iterable[int]], None] | None = getattr(self.inner, "penalise", None)
        if penalise is not None:
            penalise(clients)

    def next_model(
        self, number: int, answers: Sequence[Answer], updates: np.ndarray
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What it makes of the answers as messages."""
        return self._worker.aggregate_train(number, as_messages(answers, number))

    def state_dict(self) -> State:
        """Its attributes."""
        return state_dict(self.inner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        load_state_dict(self.inner, state)
