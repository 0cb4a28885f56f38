"""The cohort grid: strategies see one node per logical client 0…N−1, whatever the number of hosts.

Each host gets one message a round: the model once and the ids to run there. Replies are unpacked into
one `Message` a client, so strategies cannot tell the difference.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from exchange.cohort import ACTION, pack_request, unpack_replies
from exchange.errors import UserError
from exchange.text import last_line

logger = logging.getLogger("thistle")

POLL = 0.02
"""Seconds between two looks for replies (Flower's own grids wait 0.1 s or 3 s)."""
SETTLE = 1.0
"""Seconds without a new host after which the hosts are taken as complete, where no number was given."""
CLIENT_FAILED = 2
"""Flower's error code of a ClientApp that raised."""


class CohortGrid(Grid):
    """A grid of `clients` logical nodes over the hosts of `inner`."""

    def __init__(self, inner: Grid, clients: int, hosts: int, patience: float) -> None:
        """Waits for `hosts` hosts (0: for all there are), `patience` seconds at most."""
        self.inner = inner
        self.clients = clients
        self.hosts = self._wait_for_hosts(hosts, patience)
        self.on_reply: Callable[[Message], None] | None = None
        """Called with each client's reply as soon as it is there."""
        self._asked: dict[str, list[Message]] = {}

    def _wait_for_hosts(self, wanted: int, patience: float) -> list[int]:
        """All hosts, sorted; `wanted` 0: as many as there are once no new one has come for a while."""
        found: list[int] = []
        began = since = time.monotonic()
        while time.monotonic() - began < patience:
            now = sorted(self.inner.get_node_ids())
            if len(now) != len(found):
                found, since = now, time.monotonic()
            if found and (len(found) >= wanted if wanted else time.monotonic() - since > SETTLE):
                return found
            time.sleep(POLL)
        raise UserError(f"runtime.workers = {wanted}: only {len(found)} hosts came within {patience:.0f} s")

    def ping(self, content: RecordDict) -> list[RecordDict]:
        """Wait until every host has made itself ready; the first that cannot ends the run."""
        asked = [Message(content, dst_node_id=host, message_type="query.ping") for host in self.hosts]
        waiting = set(self.inner.push_messages(asked))
        ready: list[RecordDict] = []
        while waiting:
            for reply in self.inner.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    raise UserError(f"a host could not start: {last_line(reply.error.reason or '')}")
                ready.append(reply.content)
            time.sleep(POLL)
        return ready

    def get_node_ids(self) -> Iterable[int]:
        return range(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """One packed message a host; returns the hosts' message ids."""
        packed = list(self._pack(messages))
        list(self.inner.push_messages([message for message, _ in packed]))
        ids = [message.metadata.message_id for message, _ in packed]
        self._asked |= dict(zip(ids, (originals for _, originals in packed), strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there, one a client."""
        replies: list[Message] = []
        for reply in self.inner.pull_messages(message_ids):
            originals = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if originals is not None:
                replies += self._unpack(reply, originals)
        for reply in replies if self.on_reply else ():
            self.on_reply(reply)  # type: ignore[misc]
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Wait for all replies until the time-out; never end early at the first few."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        while waiting:
            replies += self.pull_messages(waiting)
            waiting &= self._asked.keys()
            if deadline is not None and time.monotonic() >= deadline:
                break
            if waiting:
                time.sleep(POLL)
        for host in waiting:
            del self._asked[host]
        return replies

    def _pack(self, messages: Iterable[Message]) -> Iterator[tuple[Message, list[Message]]]:
        """Clients in turn over the hosts; clients with the same content share one message."""
        groups: dict[tuple[int, int, str], list[Message]] = defaultdict(list)
        for index, message in enumerate(messages):
            host = self.hosts[index % len(self.hosts)]
            groups[host, id(message.content), message.metadata.message_type].append(message)
        for (host, _, kind), originals in groups.items():
            first = originals[0]
            ids = [message.metadata.dst_node_id for message in originals]
            yield (
                Message(
                    pack_request(first.content, ids),
                    dst_node_id=host,
                    message_type=f"{kind}.{ACTION}",
                    ttl=first.metadata.ttl,
                    group_id=first.metadata.group_id,
                ),
                originals,
            )

    def _unpack(self, reply: Message, originals: list[Message]) -> list[Message]:
        if reply.has_error():
            error = Error(reply.error.code, last_line(reply.error.reason or ""))
            return [Message(error, reply_to=original) for original in originals]
        by_id = {message.metadata.dst_node_id: message for message in originals}
        return [
            Message(
                Error(CLIENT_FAILED, found) if isinstance(found, str) else found,
                reply_to=by_id[client],
            )
            for client, found in unpack_replies(reply.content, by_id)
        ]

    def set_run(self, run: object) -> None:
        self.inner.set_run(run)  # type: ignore[arg-type]

    @property
    def run(self) -> object:  # type: ignore[override]
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
