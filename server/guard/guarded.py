"""The guard for any Flower app: `strategy = Guarded(FedAvg(...))` is the whole change.

Each reply alone is accepted or rejected with a reason, as in Thistle's own loop; the wrapped strategy sees accepted
replies only. Where nothing is left, or the strategy fails, the model stays as it was.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic, Result, Strategy
from torch import nn

from thistle.experiments.errors import UserError
from thistle.protocol.answer import Answer
from thistle.protocol.cohort import Record
from thistle.protocol.layout import FORTRAN, Layout, as_array, to_array
from thistle.protocol.records import ARRAYS
from thistle.protocol.text import printable
from thistle.protocol.verdict import Kind
from thistle.server.guard.agreement import Agreement, only
from thistle.server.guard.casting import NONE, cast_aggregate
from thistle.server.guard.checks import MOST_EXAMPLES, Expected
from thistle.server.guard.inspection import Guard, Terms
from thistle.server.guard.payload import read_model
from thistle.server.transport.reply import Reply
from thistle.strategies.flower import WithoutBuffers
from thistle.strategies.pipeline import Pipeline

MOST_LINES = 20
"""Warnings per round and phase; one more line says how many were left out."""
MOST_VERDICTS = 100_000
FAILURES = 3
"""Rounds in a row in which the wrapped strategy may raise."""

CURRENT = "current"
HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")

Phase = Literal["train", "evaluate"]
Trees = (FedXgbBagging, FedXgbCyclic)

_log = logging.getLogger("flwr")  # Flower's own, so that verdicts appear in the app's log


@dataclass(frozen=True)
class RoundVerdict:
    """One node's outcome in one round; without a node, the strategy's own."""

    round: int
    phase: Phase
    node: int | None
    verdict: Kind
    reason: str = ""

    def __str__(self) -> str:
        who = "the strategy" if self.node is None else f"node {self.node}"
        return f"round {self.round}, {self.phase}: {who} {self.verdict}: {self.reason}"


@dataclass(frozen=True)
class Request:
    """What one node was asked, and the model that it was sent."""

    message: Message
    sent: ArrayRecord

    def is_answered_by(self, reply: Message) -> bool:
        """Same round, same kind of work."""
        asked, answered = self.message.metadata, reply.metadata
        return (asked.group_id, asked.message_type) == (answered.group_id, answered.message_type)


class Guarded(Strategy):
    """Any Flower strategy, behind a guard.

    >>> strategy = Guarded(FedAvg(fraction_train=0.5))
    >>> result = strategy.start(grid, initial_arrays, num_rounds=3)
    >>> [v for v in strategy.verdicts if v.verdict != "accepted"]

    `model`: decides which arrays are trained. Without it, buffers are known by their type (no floats) and by batch
    norm's names. `max_examples`: the most that a reply's weight counts. `arrayrecord_key`, `weighted_by_key`: as in
    the wrapped strategy unless given. All other attributes are the wrapped strategy's.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        model: nn.Module | None = None,
        max_examples: int | None = None,
        arrayrecord_key: str | None = None,
        weighted_by_key: str | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise UserError(f"Guarded({type(strategy).__name__}): wraps a Flower Strategy, such as Guarded(FedAvg())")
        if isinstance(strategy, Trees):
            raise UserError(f"Guarded({type(strategy).__name__}): trees have no fixed layout to check")
        if max_examples is not None and max_examples < 1:
            raise UserError(f"Guarded: max_examples = {max_examples}: should be 1 or more")
        self.inner, self.model = strategy, model
        if model is None and isinstance(strategy, Pipeline):
            self.model = strategy.model
        self._cap = MOST_EXAMPLES if max_examples is None else max_examples
        self._key = arrayrecord_key or _key(strategy, "arrayrecord_key") or ARRAYS
        self._weight = weighted_by_key or _key(strategy, "weighted_by_key")
        self._worker = strategy
        self._asked: dict[Phase, dict[int, Request]] = {"train": {}, "evaluate": {}}
        self._failures: dict[Phase, int] = {"train": 0, "evaluate": 0}
        self._verdicts: deque[RoundVerdict] = deque(maxlen=MOST_VERDICTS)

    @property
    def verdicts(self) -> list[RoundVerdict]:
        """Every outcome so far, the oldest first; of very long runs the last 100,000."""
        return list(self._verdicts)

    def __getattr__(self, name: str) -> Any:
        """Whatever the guard does not have is the wrapped strategy's."""
        if name.startswith("__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **more: Any) -> Result:
        """As the wrapped strategy's; where no round gave a model, the result holds the initial one."""
        start = super().start if type(self.inner).start is Strategy.start else _with_hooks(self.inner, self).start
        result = start(grid, initial_arrays, *args, **more)
        if isinstance(result, Result) and not result.arrays:
            result.arrays = initial_arrays
        return result

    def summary(self) -> None:
        """As the wrapped strategy has it."""
        _log.info("\t├──> Guarded: %s", type(self.inner).__name__)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's requests; remembers whom it asked, with what."""
        self._sent, self._layout = arrays, Layout.of_record(arrays, self.model)
        if self._layout.buffers and not self._sees_buffers():
            self._worker = WithoutBuffers(self.inner, self._layout, self._key)
        return self._note("train", server_round, self._worker.configure_train(server_round, arrays, config, grid))

    def _sees_buffers(self) -> bool:
        """Ours combine them as the guard would; Flower's privacy adds noise to all of a model."""
        return isinstance(self.inner, Pipeline) or hasattr(self.inner, "strategy")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the accepted replies; no arrays: the model stays."""
        accepted = self._accept("train", server_round, replies)
        if not accepted:
            return None, None
        found = self._try("train", server_round, lambda: self._worker.aggregate_train(server_round, accepted))
        if found is None:
            return None, None
        aggregate, metrics = found
        arrays, problem = cast_aggregate(aggregate, self._sent, self._layout)
        if problem and problem != NONE:
            self._tell([RoundVerdict(server_round, "train", None, "rejected", f"{problem}: the model stays")])
        return (None if problem else arrays), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's requests; remembers whom it asked."""
        messages = self._worker.configure_evaluate(server_round, arrays, config, grid)
        return self._note("evaluate", server_round, messages)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the wrapped strategy makes of the accepted replies."""
        accepted = self._accept("evaluate", server_round, replies)
        if not accepted:
            return None
        return self._try("evaluate", server_round, lambda: self._worker.aggregate_evaluate(server_round, accepted))

    def _note(self, phase: Phase, number: int, messages: Iterable[Message]) -> list[Message]:
        """Remember the requests. Each carries its round, so that a reply to another one is known."""
        noted, asked = list(messages), {}
        for message in noted:
            metadata = message.metadata
            metadata.group_id = metadata.group_id or str(number)
            sent = self._model_in(message.content) if phase == "train" else ArrayRecord()
            asked[metadata.dst_node_id] = Request(message, sent)
        self._asked[phase] = asked
        return noted

    def _model_in(self, content: RecordDict) -> ArrayRecord:
        """The model in a request: a strategy may send another to each node."""
        found = content.get(self._key)
        return found if isinstance(found, ArrayRecord) else self._sent

    def _accept(self, phase: Phase, number: int, replies: Iterable[Message]) -> list[Message]:
        """The accepted replies, made of what was checked, in the order in which they came; all outcomes are noted."""
        asked, messages = self._asked[phase], list(replies)
        owners = {request.message.metadata.message_id: node for node, request in asked.items()}
        inbox = [_reply(message, asked, owners) for message in messages]
        counted = {
            reply.client: reply.records for reply in inbox if reply.group == CURRENT and reply.records is not None
        }
        agreement = Agreement.of((counted[node] for node in asked if node in counted), self._weight)
        answers: dict[int, Answer] = {}
        verdicts: list[RoundVerdict] = []
        for sent, nodes in _by_model(asked):
            layout = Layout.of_record(sent, self.model) if phase == "train" else Layout(())
            guard = AnyAppGuard(layout, agreement, self._cap)
            here = [reply for reply in inbox if reply.client in nodes]
            inspection = guard.inspect(_in_c_order(sent), nodes, here, Expected(frozenset(), frozenset()), CURRENT)
            answers |= {answer.client: answer for answer in inspection.answers}
            verdicts += [RoundVerdict(number, phase, v.client, v.verdict, v.reason) for v in inspection.verdicts]
        strays = [reply.client for reply in inbox if reply.client not in asked]
        verdicts += [RoundVerdict(number, phase, node, "rejected", "not asked: no request") for node in strays]
        if asked and not answers:
            stays = ": the model stays" if phase == "train" else ""
            verdicts.append(RoundVerdict(number, phase, None, "failed", f"no reply was accepted{stays}"))
        self._tell(verdicts)
        current = [message for message, reply in zip(messages, inbox, strict=True) if reply.group == CURRENT]
        return [
            _rebuilt(m, answers[m.metadata.src_node_id], agreement)
            for m in current
            if m.metadata.src_node_id in answers
        ]

    def _try(self, phase: Phase, number: int, aggregate: Callable[[], Any]) -> Any:
        """What the wrapped strategy returns, or None where it raises; raises itself after several rounds in a row."""
        try:
            found = aggregate()
        except Exception as error:
            self._failures[phase] += 1
            stays = ", the model stays" if phase == "train" else ""
            reason = printable(f"aggregate_{phase} raised {type(error).__name__}: {error}{stays}")
            self._tell([RoundVerdict(number, phase, None, "failed", reason)])
            if self._failures[phase] >= FAILURES:
                raise
            return None
        self._failures[phase] = 0
        return found

    def _tell(self, verdicts: list[RoundVerdict]) -> None:
        """Keep them all; log what was not accepted, one line each, up to a bound."""
        self._verdicts.extend(verdicts)
        bad = [verdict for verdict in verdicts if verdict.verdict != "accepted"]
        for verdict in bad[:MOST_LINES]:
            _log.warning("%s", verdict)
        if len(bad) > MOST_LINES:
            _log.warning("… and %d more: see Guarded.verdicts", len(bad) - MOST_LINES)


class AnyAppGuard(Guard):
    """The guard for replies of other apps: arrays as they were sent, metrics as most replies have them."""

    def __init__(self, layout: Layout, agreement: Agreement, cap: int) -> None:
        super().__init__(layout, 0, lambda _: cap, keeps_updates=False)
        self.agreement = agreement

    def read(self, client: int, records: Mapping[str, Record], terms: Terms, cap: int, row: np.ndarray) -> Answer:
        """A reply to a request for evaluation has no model: then the layout is empty."""
        self.agreement.check_configs(records)
        numbers = self.agreement.read_numbers(only(records, MetricRecord), cap)
        if not self.layout.entries:
            return Answer(client, numbers, {})
        return Answer(client, numbers, read_model(only(records, ArrayRecord), self.layout, terms.sent, row))


def _key(strategy: Any, name: str) -> str | None:
    """The strategy's attribute, or that of the one it wraps (Flower's differential privacy does)."""
    for _ in range(10):
        if isinstance(found := getattr(strategy, name, None), str):
            return found
        strategy = getattr(strategy, "strategy", None)
    return None


def _reply(message: Message, asked: Mapping[int, Request], owners: Mapping[str, int]) -> Reply:
    """A message as the guard takes it; its group is `current` where it answers this round's request.

    `owners`: whom each request went to. The SuperLink itself reports that a node is gone, or its request expired.
    """
    metadata = message.metadata
    node = metadata.src_node_id
    if message.has_error():
        owner = owners.get(metadata.reply_to_message_id) if metadata.reply_to_message_id else None
        if owner is not None and node not in asked:
            return Reply(owner, CURRENT, None, message.error.reason or "")
    group = CURRENT if node in asked and asked[node].is_answered_by(message) else metadata.group_id
    if message.has_error():
        return Reply(node, group, None, message.error.reason or "")
    return Reply(node, group, message.content)


def _by_model(asked: Mapping[int, Request]) -> list[tuple[ArrayRecord, set[int]]]:
    """The nodes that were sent the same model, together: nearly always all of them."""
    groups: dict[int, tuple[ArrayRecord, set[int]]] = {}
    for node, request in asked.items():
        groups.setdefault(id(request.sent), (request.sent, set()))[1].add(node)
    return list(groups.values())


def _rebuilt(message: Message, answer: Answer, agreement: Agreement) -> Message:
    """The reply, with nothing in it but what was checked (and config records, which are the strategy's to judge)."""
    content: dict[str, Record] = {name: message.content[name] for name in sorted(agreement.configs)}
    if answer.arrays:
        arrays = ArrayRecord()
        for name, values in answer.arrays.items():
            arrays[name] = as_array(values)
        content[agreement.arrays_name] = arrays
    content[agreement.metrics_name] = MetricRecord(dict(answer.numbers))
    message.content = RecordDict(content)
    return message


def _in_c_order(record: ArrayRecord) -> ArrayRecord:
    """The record as the guard reads it: what np.save wrote in Fortran order is turned."""
    turned = ArrayRecord()
    for name, array in record.items():
        turned[name] = to_array(array.numpy()) if FORTRAN in array.data[:128] else array
    return turned


def _with_hooks(inner: Strategy, guarded: Guarded) -> Strategy:
    """The wrapped strategy, sharing its state, with the guard's four methods: for a `start` of its own."""
    hooks = {name: staticmethod(getattr(guarded, name)) for name in HOOKS}
    shell: Strategy = object.__new__(type(type(inner).__name__, (type(inner),), hooks))
    shell.__dict__ = inner.__dict__
    return shell
