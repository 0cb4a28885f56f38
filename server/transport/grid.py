"""The cohort grid: strategies see one node per logical client 0…N−1, whatever the number of hosts.

Each host gets one message per round: the model once and the ids to run there. Its answer is unpacked into one reply a
client, so that strategies cannot tell the difference.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from thistle.experiments.errors import UserError
from thistle.protocol.text import last_line
from thistle.protocol.wakeup import REPLIES, REQUESTS
from thistle.server.transport.around import GridAround
from thistle.server.transport.dispatch import Dispatch, balance
from thistle.server.transport.hosts import Hosts
from thistle.server.transport.reply import Reply

logger = logging.getLogger("thistle")

POLL = 0.04
"""Seconds between two looks at who is there."""
SETTLE = 1.0
"""Seconds without a new host after which the hosts are taken as complete, where no number was given."""
START = 120.0
"""Seconds that hosts have to answer the first ping, at least (Ray needs up to 50 on a busy machine)."""


AGAIN = 30.0
"""Seconds after which a node that was refused is asked again: its fault, or who stood in its way, may be gone."""


@dataclass(frozen=True)
class Refusal:
    """Why a node was not taken in, and when."""

    reason: str
    time: float


def wait_for_nodes(grid: Grid, wanted: int, patience: float) -> list[int]:
    """All nodes, sorted; `wanted` 0: as many as there are once no new one has come for a while."""
    found: list[int] = []
    began = since = time.monotonic()
    while time.monotonic() - began < patience:
        now = sorted(grid.get_node_ids())
        if len(now) != len(found):
            found, since = now, time.monotonic()
        if found and (len(found) >= wanted if wanted else time.monotonic() - since > SETTLE):
            return found
        time.sleep(POLL)
    raise UserError(f"runtime.workers = {wanted}: only {len(found)} hosts appeared within {patience:.0f} s")


class CohortGrid(GridAround):
    """A grid of logical nodes over the hosts of `inner`."""

    def __init__(
        self, inner: Grid, hosts: Hosts, size: Callable[[int], int], *, chunk: int, most: int, limit: float
    ) -> None:
        """`size`: a client's share of the work; `chunk`: clients per message, 0: a host's share of them, in messages of
        at most `most`; `limit`: seconds per client."""
        self.inner, self.hosts, self.size = inner, hosts, size
        self.chunk, self.most, self.limit = chunk, most, limit
        self.on_send: list[Callable[[Sequence[Message]], None]] = []
        """Called with a round's messages before they go out."""
        self.on_reply: list[Callable[[Reply], None]] = []
        """Called with each client's reply as soon as it arrives."""
        self.retried = 0
        """Clients of the last round that were sent again because their host had died."""
        self._busy: set[int] = set()
        """Hosts that are still at work for an older round."""
        self._pings: dict[str, int] = {}
        self._refused: dict[int, Refusal] = {}
        self._suspects: set[int] = set()

    def gather(self, wanted: int, patience: float, facts: RecordDict) -> None:
        """Wait for `wanted` hosts (0: for all there are) and make them ready; without any the run ends."""
        self._facts = facts
        nodes = wait_for_nodes(self.inner, wanted, patience)
        self._ping(nodes)
        deadline = time.monotonic() + max(patience, START)
        while self._pings and time.monotonic() < deadline:
            self._take_in()
            REPLIES.wait()
        if not self.hosts.members:
            why = next((refusal.reason for refusal in self._refused.values()), "none of them answered")
            raise UserError(f"a host could not start: {why}")

    def _ping(self, nodes: Iterable[int]) -> None:
        asked = [Message(self._facts, dst_node_id=node, message_type="query.ping") for node in nodes]
        list(self.inner.push_messages(asked))
        REQUESTS.notify()
        self._pings |= {message.metadata.message_id: message.metadata.dst_node_id for message in asked}

    def _take_in(self) -> None:
        """Answers to pings: newcomers join, and busy hosts become free."""
        for reply in self.inner.pull_messages(list(self._pings)) if self._pings else ():
            node = self._pings.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            self._busy.discard(node)
            try:
                if reply.has_error():
                    raise UserError(last_line(reply.error.reason or ""))
                if node not in self.hosts.members:
                    self.hosts.join(node, reply.content)
            except UserError as error:
                self._refuse(node, str(error))

    def _refuse(self, node: int, reason: str) -> None:
        known = self._refused.get(node)
        self._refused[node] = Refusal(reason, time.monotonic())
        if known is None or known.reason != reason:
            logger.warning("%s is left out: %s", self.hosts.called(node), reason)

    def look_around(self, wanted: int, patience: float) -> int:
        """Before a round: who has come, who has gone, who is free again. Waits for `wanted` clients; counts them."""
        deadline = time.monotonic() + patience
        while True:
            strangers = self.hosts.see(self.inner.get_node_ids())
            self._ping(node for node in {*strangers, *self._busy} if self._may_be_asked(node))
            self._take_in()
            count = len(self.hosts.available(self._busy)) if self.hosts.present() else 0
            if count >= wanted or time.monotonic() >= deadline:
                return count
            time.sleep(POLL)

    def _may_be_asked(self, node: int) -> bool:
        refusal = self._refused.get(node)
        return node not in self._pings.values() and (refusal is None or time.monotonic() - refusal.time > AGAIN)

    def get_node_ids(self) -> Iterable[int]:
        """The clients that can be asked now."""
        return self.hosts.available(self._busy)

    def holding_out(self) -> list[int]:
        """A client of each host that can be asked now and holds out a part of its own data."""
        firsts: dict[int, int] = {}
        for client in self.hosts.available(self._busy) if not self.hosts.shared else ():
            node = self.hosts.owner(client)
            if self.hosts.members[node].info.held_out:
                firsts.setdefault(node, client)
        return sorted(firsts.values())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As `send` and `wait`, in Flower's words."""
        requests = {message.metadata.dst_node_id: message for message in messages}
        replies = self.send(requests.values(), timeout).wait()
        return [reply.as_message(requests[reply.client]) for reply in replies]

    def send(self, messages: Iterable[Message], timeout: float | None) -> Pending:
        """Each client's message is under way when this returns; the clock runs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        round = Dispatch(self.inner, deadline, self.limit, self._suspects)
        asked = list(messages)
        for listener in self.on_send:
            listener(asked)
        self._plan(round, asked)
        round.feed(self._free())
        return Pending(self, round)

    def receive(self, round: Dispatch) -> Iterator[Reply]:
        """All replies of the round until its deadline, as they come; never ends early. None of them is kept here."""
        late = False
        while not (round.is_over or late):
            new, late = deque(round.collect()), round.is_late
            if not late:
                if self._pings:
                    self._take_in()
                round.feed(self._free())
                if not (round.is_over or new):
                    REPLIES.wait()
            while new:
                for listener in self.on_reply:
                    listener(new[0])
                yield new.popleft()
        self._busy |= round.at_work
        self.retried = round.retried
        yield from round.unsent()

    def _free(self) -> list[int]:
        return [host for host in self.hosts.present() if host not in self._busy]

    def _plan(self, round: Dispatch, messages: list[Message]) -> None:
        """Who goes where: anywhere, or to the one host that a client has."""
        if self.hosts.shared:
            round.add(balance(messages, self.size, max(len(self._free()), 1), self.chunk, self.most), None)
            return
        by_host: dict[int, list[Message]] = defaultdict(list)
        for message in messages:
            by_host[self.hosts.owner(message.metadata.dst_node_id)].append(message)
        for host, own in by_host.items():
            round.add(balance(own, self.size, 1, self.chunk, self.most), host)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("hosts are addressed by send and send_and_receive only")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("hosts are addressed by send and send_and_receive only")


@dataclass(frozen=True)
class Pending:
    """A round's messages, sent but not answered yet."""

    grid: CohortGrid
    round: Dispatch

    def replies(self) -> Iterator[Reply]:
        """Each as soon as it has come. Until the last one is taken, the clock runs and hosts are given work."""
        return self.grid.receive(self.round)

    def wait(self) -> list[Reply]:
        """All of them, in the order in which they came."""
        return list(self.replies())
