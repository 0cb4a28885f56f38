"""The guard: each reply alone becomes an accepted one, rebuilt from what was checked, or a verdict with a reason.

Nothing a reply says can raise, and no reply changes what becomes of another client's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Error, Message, RecordDict

from exchange.layout import Layout, record_bytes
from exchange.records import ARRAYS, METRICS, arrays_of
from exchange.text import last_line, printable
from exchange.verdict import Verdict
from server.checks import Expected, Rejected, check_records, read_metrics
from server.factors import read_factors
from server.payload import Sent, read_model

__all__ = ["Expected", "Guard", "Inspection"]

TRAIN = "train"


class Failed(Exception):
    """There is no reply to check. The text is the reason."""


@dataclass
class Inspection:
    """What a round's replies came to: both lists in the order of client ids."""

    accepted: list[Message] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # replies nobody asked for in this round
    num_bytes: int = 0  # what the arrays of the accepted replies weighed as they came


@dataclass
class Mail:
    """One asked client's replies: to this round's request, and to others."""

    current: list[Message] = field(default_factory=list)
    late: bool = False


class Guard:
    """Checks replies against the model that was sent and the bounds the server sets."""

    def __init__(self, layout: Layout, classes: int, max_examples: Callable[[int], int]) -> None:
        self.layout, self.classes, self.max_examples = layout, classes, max_examples

    def inspect(
        self,
        sent: ArrayRecord,
        asked: Collection[int],
        replies: Iterable[Message],
        expected: Expected,
        group_id: str,
        ranks: Mapping[int, float] | None = None,
    ) -> Inspection:
        """Judge the replies to this round's request; `group_id` is what the request carried.

        `ranks`: the clients that were asked for factors, and of which rank; the others owe a model.
        """
        model = Sent.of(sent, self.layout)
        caps = {client: self.max_examples(client) for client in sorted(set(asked))}
        inspection, envelope = Inspection(), Message(RecordDict(), 0, TRAIN, group_id=group_id)
        mails = _sort(replies, caps, group_id, inspection.strays)
        for client, cap in caps.items():
            verdict = Verdict(client, "accepted")
            try:
                content = _only_content(mails[client])
                rebuilt = self._rebuild(content, model, expected, cap, (ranks or {}).get(client))
            except Failed as failure:
                verdict = Verdict(client, "failed", reason=printable(failure))
            except Rejected as broken:
                verdict = Verdict(client, "rejected", step="guard", reason=printable(broken))
            except Exception as error:  # whatever a reply made us trip over is that reply's fault alone
                reason = printable(f"records: {type(error).__name__}: {error}")
                verdict = Verdict(client, "rejected", step="guard", reason=reason)
            else:
                inspection.accepted.append(_reply(client, rebuilt, envelope))
                inspection.num_bytes += record_bytes([arrays_of(mails[client].current[0])])
            inspection.verdicts.append(verdict)
        return inspection

    def _rebuild(self, content: RecordDict, sent: Sent, expected: Expected, cap: int, rank: float | None) -> RecordDict:
        """A model and its metrics, whether the client sent a model or the factors of its update."""
        arrays, metrics = check_records(content)
        known = read_metrics(metrics, expected, self.classes, cap)
        model = read_model(arrays, self.layout, sent) if rank is None else read_factors(arrays, self.layout, sent, rank)
        return RecordDict({ARRAYS: model, METRICS: known})


def _sort(replies: Iterable[Message], asked: Collection[int], group_id: str, strays: list[str]) -> dict[int, Mail]:
    """The asked clients' mail. Replies of others, or of other rounds, are strays."""
    mails = {client: Mail() for client in asked}
    for reply in replies:
        client, group = reply.metadata.src_node_id, reply.metadata.group_id
        if type(client) is not int or client not in mails:
            strays.append(printable(f"not asked: client {client}"))
        elif group != group_id:
            strays.append(printable(f"not asked: client {client} replied to round {group} in round {group_id}"))
            mails[client].late = True
        else:
            mails[client].current.append(reply)
    return mails


def _only_content(mail: Mail) -> RecordDict:
    """The content of a client's one reply.

    A client that replied twice is rejected altogether: neither reply is the one to believe. Nobody can do this to
    another client, because the grid matches replies to requests, so both came from the client's own host.
    """
    if not mail.current:
        raise Rejected("not asked: a reply of another round") if mail.late else Failed("timeout")
    if len(mail.current) > 1:
        raise Rejected(f"duplicate: {len(mail.current)} replies")
    reply = mail.current[0]
    if reply.has_error():
        raise Failed(_failure(reply.error))
    return reply.content


def _failure(error: Error) -> str:
    reason = last_line(error.reason if isinstance(error.reason, str) else "")
    return reason if reason in ("timeout", "busy") else f"failed: {reason}"


def _reply(client: int, content: RecordDict, envelope: Message) -> Message:
    """A message of our own making: nothing of the sender's is in it but what was checked."""
    envelope.metadata.dst_node_id = client
    return Message(content, reply_to=envelope)
