"""What simulated attackers remember, kept for them: a simulated client has no storage.

It keeps what attackers wrote down last, in common, and for each of them how often it was asked; both go along with the
next request to an attacker, and into the checkpoint. No decision of the server's looks into it. Only evaluations do,
for the attack's success: nobody else knows a trigger that attackers have searched for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from thistle.attacks.registry import find
from thistle.attacks.roles import attackers, remembers
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import view
from thistle.protocol.records import DEFENCE, MEMORY, NOTE, SAMPLED, TIMES
from thistle.server.transport.reply import Reply

COUNTS = "asked/"
"""Before a client's id in the checkpoint."""


@dataclass
class Memories:
    """Of the attackers of one experiment."""

    experiment: Experiment
    common: dict[str, np.ndarray] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    """How often each attacker was asked."""

    @property
    def _attackers(self) -> frozenset[int]:
        return attackers(self.experiment.attack, self.experiment.task.clients, self.experiment.seed)

    def add(self, messages: Sequence[Message], state: Callable[[], Mapping[str, object]]) -> Sequence[Message]:
        """The requests with what each attacker remembers; who knows all gets the state too, and who takes part."""
        attack = self.experiment.attack
        shared: dict[str, ArrayRecord] = {}
        if find(attack.kind).knows == "defence":
            arrays = {name: value for name, value in state().items() if isinstance(value, np.ndarray)}
            shared[DEFENCE] = _record({**arrays, SAMPLED: np.array([m.metadata.dst_node_id for m in messages])})
        if not shared and not remembers(attack):
            return messages
        return [self._with_memory(message, shared) for message in messages]

    def _with_memory(self, message: Message, shared: Mapping[str, ArrayRecord]) -> Message:
        client = message.metadata.dst_node_id
        if client not in self._attackers:
            return message
        own = {TIMES: np.array(self.asked.get(client, 0))}
        memory = {MEMORY: _record({**self.common, **own})} if remembers(self.experiment.attack) else {}
        content = RecordDict({**message.content, **shared, **memory})
        added = Message(content, dst_node_id=client, message_type=message.metadata.message_type)
        added.metadata.group_id, added.metadata.ttl = message.metadata.group_id, message.metadata.ttl
        return added

    def take(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """The replies without what attackers want to see again, which is kept; the lowest id wins."""
        attackers, lowest = self._attackers, math.inf
        for reply in replies:
            if reply.records is not None and reply.client in attackers and MEMORY in reply.records:
                arrays = _arrays(reply.records[MEMORY])
                self.asked[reply.client] = int(arrays.pop(TIMES))
                if arrays and reply.client < lowest:
                    self.common, lowest = arrays, reply.client
            yield _without_memory(reply)

    def notes(self) -> dict[str, torch.Tensor]:
        """What the attack itself wrote down last, for evaluations."""
        return {
            name.removeprefix(NOTE): torch.from_numpy(array)
            for name, array in self.common.items()
            if name.startswith(NOTE)
        }

    def behaving(self) -> set[int]:
        """The attackers that were still honest when they were last asked, to be trusted."""
        first = self.experiment.attack.honest_first
        return {client for client in self._attackers if self.asked.get(client, 0) <= first} if first else set()

    def state(self) -> dict[str, np.ndarray]:
        """For the checkpoint."""
        return {**self.common, **{f"{COUNTS}{client}": np.array(n) for client, n in sorted(self.asked.items())}}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """From a checkpoint."""
        self.common = {name: array for name, array in state.items() if not name.startswith(COUNTS)}
        self.asked = {
            int(name.removeprefix(COUNTS)): int(array) for name, array in state.items() if name.startswith(COUNTS)
        }


def _record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.array(array, order="C")) for name, array in arrays.items()})


def _arrays(record: object) -> dict[str, np.ndarray]:
    assert isinstance(record, ArrayRecord)
    return {name: np.array(view(array)) for name, array in record.items()}


def _without_memory(reply: Reply) -> Reply:
    if reply.records is None or MEMORY not in reply.records:
        return reply
    return replace(reply, records={name: record for name, record in reply.records.items() if name != MEMORY})
