"""One round's messages on their way: a host gets one chunk of clients at a time, and the next when it has answered.

A host that dies loses its chunk, not its clients: each of them is sent again, alone, so that one that kills its
process fails alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from thistle.flower_compat.error_codes import ErrorCode
from thistle.protocol.cohort import ACTION, pack_request, unpack_replies
from thistle.protocol.text import last_line
from thistle.protocol.wakeup import REQUESTS
from thistle.server.transport.reply import Reply

logger = logging.getLogger("thistle")

HOST_LOST = (ErrorCode.UNKNOWN, ErrorCode.CLIENT_APP_CRASHED)
"""What Flower says of a worker that died, and of a ClientApp's process that stopped responding."""
MESSAGE = 1 << 25
"""Bytes of models in one host's message, about: several copies of it are alive until its clients' replies are checked.
"""
TRIES = 4
"""How often a client is sent alone before its process's death is its own fault."""


@dataclass(eq=False)
class Chunk:
    """Clients for one host's message."""

    messages: list[Message]
    host: int | None
    """The only host that may run them; None: any."""
    tries: int = 0
    """How often these were sent alone before."""
    sent: float = 0.0

    @property
    def ids(self) -> list[int]:
        return [message.metadata.dst_node_id for message in self.messages]

    def packed(self, host: int, deadline: float | None) -> Message:
        """The message for a host. It lives as long as the round may, so that nobody works on it later."""
        metadata = self.messages[0].metadata
        return Message(
            pack_request({message.metadata.dst_node_id: message.content for message in self.messages}),
            dst_node_id=host,
            message_type=f"{metadata.message_type}.{ACTION}",
            ttl=metadata.ttl if deadline is None else max(deadline - time.monotonic(), 0.001),
            group_id=metadata.group_id,
        )


def balance(
    messages: Sequence[Message], size: Callable[[int], int], hosts: int, chunk: int, most: int
) -> list[list[Message]]:
    """Chunks of equal work, the same number for each host, with at most `most` clients; or (`chunk` > 0) of this many
    clients, the largest first."""
    ordered = sorted(messages, key=lambda message: -size(message.metadata.dst_node_id))
    if chunk:
        return [ordered[start : start + chunk] for start in range(0, len(ordered), chunk)]
    count = hosts * math.ceil(len(ordered) / (hosts * most))
    loads, chunks = [0.0] * count, [list[Message]() for _ in range(count)]
    for message in ordered:
        lightest = loads.index(min(loads))
        chunks[lightest].append(message)
        full = len(chunks[lightest]) == most
        loads[lightest] += math.inf if full else size(message.metadata.dst_node_id)
    return [chunk for chunk in chunks if chunk]


@dataclass
class Dispatch:
    """The traffic of one round."""

    inner: Grid
    deadline: float | None
    limit: float
    """Seconds after which a host ends a client."""
    suspects: set[int]
    """Clients whose process has died under them alone; shared with later rounds, in which they go alone at once."""
    queue: deque[Chunk] = field(default_factory=deque)
    out: dict[int, tuple[str, Chunk]] = field(default_factory=dict)
    """Host → the message it works on."""
    retried: int = 0

    def add(self, chunks: Sequence[Sequence[Message]], host: int | None) -> None:
        """Clients to be sent; suspects go alone."""
        for chunk in chunks:
            innocent = [message for message in chunk if message.metadata.dst_node_id not in self.suspects]
            if innocent:
                self.queue.append(Chunk(innocent, host))
            others = [message for message in chunk if message.metadata.dst_node_id in self.suspects]
            self.queue.extend(Chunk([message], host, TRIES - 1) for message in others)

    @property
    def is_over(self) -> bool:
        return not self.queue and not self.out

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def feed(self, free: Sequence[int]) -> None:
        """Give each free host the next chunk that it may run."""
        for host in free:
            if host in self.out:
                continue
            chunk = next((chunk for chunk in self.queue if chunk.host in (None, host)), None)
            if chunk is None:
                continue
            self.queue.remove(chunk)
            message = chunk.packed(host, self.deadline)
            list(self.inner.push_messages([message]))
            REQUESTS.notify()
            chunk.sent = time.monotonic()
            self.out[host] = (message.metadata.message_id, chunk)

    def collect(self) -> list[Reply]:
        """The replies that have come in, one per client."""
        waiting = {name: host for host, (name, _) in self.out.items()}
        replies: list[Reply] = []
        for reply in self.inner.pull_messages(list(waiting)) if waiting else ():
            host = waiting.get(reply.metadata.reply_to_message_id)
            if host is not None and host in self.out:
                _, chunk = self.out.pop(host)
                replies += self._unpack(reply, chunk, host)
        return replies

    def _unpack(self, reply: Message, chunk: Chunk, host: int) -> list[Reply]:
        if not reply.has_error():
            self.suspects.difference_update(chunk.ids)
            found = unpack_replies(reply.content, chunk.ids)
            return [Reply.to(message, own) for message, (_, own) in zip(chunk.messages, found, strict=True)]
        if reply.error.code not in HOST_LOST:
            reason = last_line(reply.error.reason or "")
            return [Reply.to(message, reason) for message in chunk.messages]
        return self._lost(chunk, host)

    def _lost(self, chunk: Chunk, host: int) -> list[Reply]:
        """Try each client alone, or take it as proven that this one ends its process, or hangs until that is ended."""
        alone = len(chunk.messages) == 1
        lived = time.monotonic() - chunk.sent
        if alone and (lived > self.limit or chunk.tries >= TRIES - 1):
            self.suspects.update(chunk.ids)
            reason = f"its process died under it, {lived:.0f} s after it was sent"
            return [Reply.to(chunk.messages[0], reason)]
        logger.warning("host %d died with clients %s: each will be retried alone", host, _some(chunk.ids))
        tries = chunk.tries + alone
        self.queue.extendleft(Chunk([message], chunk.host, tries) for message in reversed(chunk.messages))
        self.retried += len(chunk.messages)
        return []

    @property
    def at_work(self) -> set[int]:
        """The hosts that have not answered."""
        return set(self.out)

    def unsent(self) -> list[Reply]:
        """Replies for the clients that no host had time for."""
        return [Reply.to(message, "busy") for chunk in self.queue for message in chunk.messages]


def _some(ids: Sequence[int]) -> str:
    shown = ", ".join(str(client) for client in ids[:10])
    return f"{shown}, …" if len(ids) > 10 else shown
