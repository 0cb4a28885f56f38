"""The guard: each reply alone becomes an answer, made of what was checked, or a verdict with a reason.

Nothing in a reply can raise, and no reply affects another client's verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord

from thistle.protocol.answer import Answer
from thistle.protocol.cohort import Record
from thistle.protocol.layout import Layout
from thistle.protocol.text import last_line, printable
from thistle.protocol.verdict import Verdict
from thistle.server.guard.checks import Expected, Rejected, check_records, read_metrics
from thistle.server.guard.factors import read_factors
from thistle.server.guard.payload import Sent, read_model
from thistle.server.transport.reply import Reply

__all__ = ["Expected", "Guard", "Inspection"]


class Failed(Exception):
    """There is no reply to check. The text is the reason."""


@dataclass
class Inspection:
    """What a round's replies came to: answers and verdicts in the order of client ids."""

    updates: np.ndarray
    """n×d: each answer's model minus the one that was sent, where the guard keeps them."""
    answers: list[Answer] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # replies nobody asked for in this round
    num_bytes: int = 0  # what the arrays of all replies weighed as they came, those of rejected ones too


@dataclass(frozen=True)
class Terms:
    """What a round's replies have to fit."""

    sent: Sent
    expected: Expected
    ranks: Mapping[int, float]
    """Of the clients that were asked for factors."""


@dataclass
class Mail:
    """One asked client's replies: to this round's request, and to others."""

    current: list[Reply] = field(default_factory=list)
    late: bool = False


class Guard:
    """Checks replies against the model that was sent and the bounds the server sets."""

    def __init__(
        self, layout: Layout, classes: int, max_examples: Callable[[int], int], keeps_updates: bool = True
    ) -> None:
        """`keeps_updates`: the strategy wants them as a block; Flower's own go by the models."""
        self.layout, self.classes, self.max_examples = layout, classes, max_examples
        self.keeps_updates = keeps_updates

    def inspect(
        self,
        sent: ArrayRecord,
        asked: Collection[int],
        replies: Iterable[Reply],
        expected: Expected,
        group_id: str,
        ranks: Mapping[int, float] | None = None,
    ) -> Inspection:
        """Judge the replies to this round's request; `group_id` is what the request carried.

        `ranks`: the clients that were asked for factors, and of which rank; the others owe a model.
        """
        terms = Terms(Sent.of(sent, self.layout), expected, ranks or {})
        caps = {client: self.max_examples(client) for client in sorted(set(asked))}
        rows = len(caps) if self.keeps_updates else 1
        updates = np.empty((rows, self.layout.size), np.float32)  # numpy's large arrays lie in huge pages
        came = list(replies)
        inspection = Inspection(updates, num_bytes=sum(_size(reply.records or {}) for reply in came))
        mails = _sort(came, caps, group_id, inspection.strays)
        with np.errstate(over="ignore", invalid="ignore"):
            for client, cap in caps.items():
                row = updates[len(inspection.answers) if self.keeps_updates else 0]
                inspection.verdicts.append(self._judge(client, mails[client], terms, cap, row, inspection))
        if self.keeps_updates:
            inspection.updates = updates[: len(inspection.answers)]
        return inspection

    def _judge(
        self, client: int, mail: Mail, terms: Terms, cap: int, row: np.ndarray, inspection: Inspection
    ) -> Verdict:
        """Add the answer of a client whose reply is good, and its update in `row`; return the verdict."""
        try:
            answer = self.read(client, _only_records(mail), terms, cap, row)
        except Failed as failure:
            return Verdict(client, "failed", reason=printable(failure))
        except Rejected as broken:
            return Verdict(client, "rejected", step="guard", reason=printable(broken))
        except Exception as error:  # whatever a reply made us trip over is that reply's fault alone
            reason = printable(f"records: {type(error).__name__}: {error}")
            return Verdict(client, "rejected", step="guard", reason=reason)
        inspection.answers.append(answer)
        return Verdict(client, "accepted")

    def read(self, client: int, records: Mapping[str, Record], terms: Terms, cap: int, row: np.ndarray) -> Answer:
        """The answer that these records hold, or Rejected; the update goes into `row`."""
        arrays, metrics = check_records(records)
        numbers = read_metrics(metrics, terms.expected, self.classes, cap)
        rank = terms.ranks.get(client)
        if rank is None:
            model = read_model(arrays, self.layout, terms.sent, row)
        else:
            model = read_factors(arrays, self.layout, terms.sent, rank, row)
        return Answer(client, numbers, model)


def _size(records: Mapping[str, Record]) -> int:
    """Bytes of the arrays in one reply; what is none is not counted."""
    arrays = (array for record in records.values() if isinstance(record, ArrayRecord) for array in record.values())
    data = (getattr(array, "data", None) for array in arrays)
    return sum(len(one) for one in data if type(one) is bytes)


def _sort(replies: Iterable[Reply], asked: Collection[int], group_id: str, strays: list[str]) -> dict[int, Mail]:
    """The asked clients' mail. Replies of others, or of other rounds, are strays."""
    mails = {client: Mail() for client in asked}
    for reply in replies:
        client, group = reply.client, reply.group
        if type(client) is not int or client not in mails:
            strays.append(printable(f"not asked: client {client}"))
        elif group != group_id:
            strays.append(printable(f"not asked: client {client} replied to round {group} in round {group_id}"))
            mails[client].late = True
        else:
            mails[client].current.append(reply)
    return mails


def _only_records(mail: Mail) -> Mapping[str, Record]:
    """The records of a client's one reply.

    A client that replied twice is rejected altogether: neither reply is the one to believe. Nobody can do this to
    another client, because the grid matches replies to requests, so both came from the client's own host.
    """
    if not mail.current:
        raise Rejected("not asked: a reply of another round") if mail.late else Failed("timeout")
    if len(mail.current) > 1:
        raise Rejected(f"duplicate: {len(mail.current)} replies")
    reply = mail.current[0]
    if reply.records is None:
        reason = last_line(reply.failure)
        raise Failed(reason if reason in ("timeout", "busy") else f"failed: {reason}")
    return reply.records
