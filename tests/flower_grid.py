"""Flower's own `strategy.start()` in this process: a Grid with real ClientApps and 64-bit node ids.

    grid = MemoryGrid(app, nodes=10)
    FedAvg().start(grid, initial_arrays, num_rounds=3)

Every message passes through Flower's own encoding, as between processes. Node i has partition-id i, and node ids are
as large as Flower's: unsigned, half of them above 2^63.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from uuid import uuid4

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid

from thistle.flower_compat.messages import identify

Tamper = Callable[[list[Message]], list[Message]]
"""From the replies of one `send_and_receive` to what arrives instead: some lost, some twice, some late."""


class MemoryGrid(Grid):
    """Nodes with a ClientApp (or each with its own, by partition id), a context each, and a network between."""

    def __init__(
        self, app: ClientApp | Callable[[int], ClientApp], nodes: int = 10, tamper: Tamper | None = None
    ) -> None:
        identify()
        ids = np.random.default_rng(7).integers(2**62, 2**64, nodes, dtype=np.uint64, endpoint=False).tolist()
        ids[0] = 2**64 - 1
        self.ids: list[int] = ids
        self.apps = {node: app if isinstance(app, ClientApp) else app(index) for index, node in enumerate(ids)}
        self.contexts = {
            node: Context(1, node, {"partition-id": index, "num-partitions": nodes}, RecordDict(), {})
            for index, node in enumerate(ids)
        }
        self.tamper = tamper
        self.requests: list[Message] = []
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return self.ids

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = name = uuid4().hex
        self.requests.append(message)
        arrived = message_from_proto(message_to_proto(message))
        node = message.metadata.dst_node_id
        try:
            reply = self.apps[node](arrived, self.contexts[node])
        except Exception:
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, traceback.format_exc()), reply_to=arrived)
        self._replies[name] = message_from_proto(message_to_proto(reply))
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = list(self.pull_messages(self.push_messages(messages)))
        return self.tamper(replies) if self.tamper else replies

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:  # type: ignore[override]
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
