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
    """What one asked client's replies came to."""

    row: int
    replies: int = 0
    """To this round's request."""
    late: bool = False
    """Whether there was one to another round's."""
    verdict: Verdict | None = None
    """On the first of them."""
    answer: Answer | None = None


class Guard:
    """Checks replies against the model that was sent and the bounds the server sets."""

    def __init__(
        self,
        layout: Layout,
        classes: int,
        max_examples: Callable[[int], int],
        keeps_updates: bool = True,
        keeps_models: bool = True,
    ) -> None:
        """`keeps_updates`: the strategy wants them as a block. `keeps_models`: it goes by the models, as Flower's own
        do; otherwise an answer holds the buffers only, and nothing of the reply as it came."""
        self.layout, self.classes, self.max_examples = layout, classes, max_examples
        self.keeps_updates, self.keeps_models = keeps_updates, keeps_models

    def inspect(
        self,
        sent: ArrayRecord,
        asked: Collection[int],
        replies: Iterable[Reply],
        expected: Expected,
        group_id: str,
        ranks: Mapping[int, float] | None = None,
    ) -> Inspection:
        """Judge the replies to this round's request as they come; `group_id` is what the request carried.

        `ranks`: the clients that were asked for factors, and of which rank; the others owe a model.
        """
        terms = Terms(Sent.of(sent, self.layout), expected, ranks or {})
        mails = {client: Mail(row) for row, client in enumerate(sorted(set(asked)))}
        rows = len(mails) if self.keeps_updates else 1
        updates = np.empty((rows, self.layout.size), np.float32)  # numpy's large arrays lie in huge pages
        inspection = Inspection(updates)
        for reply in replies:
            inspection.num_bytes += _size(reply.records or {})
            mail = _sort(reply, mails, group_id, inspection.strays)
            if mail and mail.replies == 1:
                self._judge(reply, mail, terms, updates[mail.row if self.keeps_updates else 0])
        for client, mail in mails.items():
            self._conclude(client, mail, inspection)
        if self.keeps_updates:
            inspection.updates = updates[: len(inspection.answers)]
        return inspection

    def _judge(self, reply: Reply, mail: Mail, terms: Terms, row: np.ndarray) -> None:
        """The verdict on this reply; if it is good, its answer, and its update in `row`."""
        client = reply.client
        if reply.records is None:
            reason = last_line(reply.failure)
            failure = reason if reason in ("timeout", "busy") else f"failed: {reason}"
            mail.verdict = Verdict(client, "failed", reason=printable(failure))
            return
        cap = self.max_examples(client)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                mail.answer = self.read(client, reply.records, terms, cap, row)
            mail.verdict = Verdict(client, "accepted")
        except Rejected as broken:
            mail.verdict = _rejected(client, broken)
        except Exception as error:  # whatever a reply made us trip over is that reply's fault alone
            mail.verdict = _rejected(client, f"records: {type(error).__name__}: {error}")

    def _conclude(self, client: int, mail: Mail, inspection: Inspection) -> None:
        """Add the client's verdict and, if it is accepted, its answer; its row follows that of the last accepted one.

        A client that replied twice is rejected altogether: neither reply is the one to believe. Nobody can do this to
        another client, because the grid matches replies to requests, so both came from the client's own host.
        """
        verdict = mail.verdict or Verdict(client, "failed", reason="timeout")
        if mail.replies > 1:
            verdict = _rejected(client, f"duplicate: {mail.replies} replies")
        elif mail.late and not mail.replies:
            verdict = _rejected(client, "not asked: a reply of another round")
        elif mail.answer is not None:
            place = len(inspection.answers)
            if self.keeps_updates and place < mail.row:
                inspection.updates[place] = inspection.updates[mail.row]
            inspection.answers.append(mail.answer)
        inspection.verdicts.append(verdict)

    def read(self, client: int, records: Mapping[str, Record], terms: Terms, cap: int, row: np.ndarray) -> Answer:
        """The answer that these records hold, or Rejected; the update goes into `row`."""
        arrays, metrics = check_records(records)
        numbers = read_metrics(metrics, terms.expected, self.classes, cap)
        rank = terms.ranks.get(client)
        if rank is None:
            model = read_model(arrays, self.layout, terms.sent, row)
        else:
            model = read_factors(arrays, self.layout, terms.sent, rank, row)
        if not self.keeps_models:
            model = {entry.name: np.array(model[entry.name]) for entry in self.layout.buffers}
        return Answer(client, numbers, model)


def _size(records: Mapping[str, Record]) -> int:
    """Bytes of the arrays in one reply; what is none is not counted."""
    arrays = (array for record in records.values() if isinstance(record, ArrayRecord) for array in record.values())
    data = (getattr(array, "data", None) for array in arrays)
    return sum(len(one) for one in data if type(one) is bytes)


def _sort(reply: Reply, mails: Mapping[int, Mail], group_id: str, strays: list[str]) -> Mail | None:
    """Whose reply this is. Replies of clients that were not asked, or of other rounds, are strays: None."""
    client, group = reply.client, reply.group
    if type(client) is not int or client not in mails:
        strays.append(printable(f"not asked: client {client}"))
        return None
    if group != group_id:
        strays.append(printable(f"not asked: client {client} replied to round {group} in round {group_id}"))
        mails[client].late = True
        return None
    mails[client].replies += 1
    return mails[client]


def _rejected(client: int, reason: object) -> Verdict:
    return Verdict(client, "rejected", step="guard", reason=printable(reason))
