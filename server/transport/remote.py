"""Flower's grid of a deployed federation, made safe to wait on.

Its `pull_messages` waits for what a node has announced and not yet uploaded: minutes, past any time-out, and with
everybody else's replies in its hands. Here each message has a thread of its own that pulls it, and nobody waits for
a thread: a node that never uploads keeps its own reply only. tests/server/test_remote.py notices an upgrade.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Error, Message
from flwr.serverapp import Grid

from thistle.flower_compat.error_codes import ErrorCode
from thistle.flower_compat.runtime_api import HTTPError, RunNotRunningException
from thistle.protocol.pace import pause
from thistle.protocol.text import last_line
from thistle.protocol.wakeup import REPLIES
from thistle.server.transport.around import GridAround

SOON, POLL = 0.1, 0.5
"""Seconds between two questions about the same thing, at first and later: each is a request to the SuperLink, and locks
its database."""
CROWD = 10
"""This many messages can be polled at that rate; more of them share it."""
STOPPED = (RunNotRunningException, SystemExit, KeyboardInterrupt)
"""What a run is ended with from outside. None of them is an Exception: Flower's is raised in whatever thread asks a
SuperLink after `flwr stop`, the others in the main thread, by signals."""


@dataclass
class Letter:
    """A message on its way; who pulls it writes the reply."""

    request: Message
    expires: float
    reply: Message | None = None
    watched: bool = False


class RemoteGrid(GridAround):
    """A grid whose pull never blocks; what cannot be sent or read becomes an error reply to that message."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner
        self._letters: dict[str, Letter] = {}
        self._nodes: list[int] = []
        self._asked = -POLL
        self._failure: BaseException | None = None

    def _check(self) -> None:
        """What went wrong in a thread is raised where somebody sees it."""
        if self._failure is not None:
            raise self._failure

    def get_node_ids(self) -> Iterable[int]:
        """Who is online: asked at most every POLL seconds."""
        self._check()
        if time.monotonic() - self._asked >= POLL:
            self._nodes = sorted(self.inner.get_node_ids())
            self._asked = time.monotonic()
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """One at a time; a node that is not known any more gives an error reply."""
        self._check()
        self._forget()
        names = []
        for message in messages:
            taken = next(iter(self.inner.push_messages([message])), None)
            name = message.metadata.message_id
            letter = Letter(message, time.monotonic() + message.metadata.ttl)
            if not taken:
                gone = Error(ErrorCode.NODE_UNAVAILABLE, "the node is not known to the SuperLink")
                letter.reply = Message(gone, reply_to=message)
                letter.watched = True
            self._letters[name] = letter
            names.append(name)
        return names

    def _forget(self) -> None:
        """Letters that are too late to matter."""
        now = time.monotonic()
        for name in [name for name, letter in self._letters.items() if letter.expires < now]:
            del self._letters[name]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there. An error of Flower's connection, in whatever thread, is raised here."""
        self._check()
        replies = []
        for name in message_ids:
            letter = self._letters.get(name)
            if letter is None:
                continue
            if not letter.watched:
                letter.watched = True
                threading.Thread(target=self._watch, args=(name, letter), daemon=True).start()
            if letter.reply is not None:
                replies.append(letter.reply)
                del self._letters[name]
        return replies

    def _watch(self, name: str, letter: Letter) -> None:
        """Pull until the reply arrives or nobody needs it any more."""
        began = time.monotonic()
        try:
            while name in self._letters:
                found = self._pull(name, letter.request)
                if found is not None:
                    letter.reply = found
                    REPLIES.notify()
                    return
                asked_for = time.monotonic() - began
                time.sleep(pause(asked_for, SOON, POLL) * max(1.0, len(self._letters) / CROWD))
        except BaseException as error:  # Flower's word that the run is over is one
            self._failure = error
            REPLIES.notify()

    def _pull(self, name: str, request: Message) -> Message | None:
        try:
            found = self.inner.pull_messages([name])  # may hold what a node sent unasked, too
            return next((reply for reply in found if reply.metadata.reply_to_message_id == name), None)
        except (HTTPError, OSError, RunNotRunningException):
            raise
        except Exception as error:  # a reply that Flower cannot put together is its sender's fault
            reason = last_line(f"{type(error).__name__}: {error}")
            unreadable = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, f"the reply cannot be read: {reason}")
            return Message(unreadable, reply_to=request)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError("the cohort grid pushes and pulls")
