"""What a run tells the audit log: who started what, and of each round the requests, replies, verdicts and the model.

In a deployed federation the log is the federation's, beside its other keys; a simulation's lies in its run folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message

from thistle.experiments.chain import PLACE, Chain, fingerprint
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, write_atomically
from thistle.protocol.cohort import Record
from thistle.protocol.layout import sha256, to_state
from thistle.protocol.text import last_line
from thistle.server.recording.environment import app_hash
from thistle.server.recording.packing import pack
from thistle.server.transport.grid import CohortGrid
from thistle.server.transport.remote import STOPPED
from thistle.server.transport.reply import Reply


class Audit:
    """One run's part of the log; where nobody wants one, nothing is done."""

    def __init__(self, experiment: Experiment, folder: RunFolder, deployed: bool) -> None:
        self.folder, self.deployed = folder, deployed
        self.on, self.keeps = experiment.run.is_audited(deployed), experiment.run.keep_replies
        self.experiment = {**experiment.flat(), "run.resume": False, "run.until": 0}  # as in experiment.toml
        self.chain = Chain(Path((deployed and os.environ.get(PLACE)) or folder.path).absolute())
        self._requests: dict[str, Any] = {}
        self._replies: list[list[Any]] = []

    def listen(self, grid: CohortGrid) -> None:
        """Take down what goes out and what comes in."""
        if self.on:
            grid.on_send.append(lambda messages: self._sent(messages, grid))
            grid.on_reply.append(self._came)

    def started(self, after: int, arrays: ArrayRecord) -> None:
        """A new run, or one that goes on after this round: by which experiment, which code, from which model."""
        self._say(
            "resumed" if after else "started",
            after=after,
            folder=str(self.folder.path.absolute()),
            deployed=self.deployed,
            experiment=self.experiment,
            experiment_sha256=fingerprint(self.experiment),
            app_sha256=app_hash() if self.on else "",
            model_sha256=self._model(arrays),
        )

    def round(self, line: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]], arrays: ArrayRecord) -> None:
        """What is in metrics.jsonl and verdicts.jsonl of a round, what led to it, and the model that it gave."""
        self._say(
            "round",
            round=line["round"],
            **self._requests,
            replies=sorted(self._replies),
            kept=self.keeps,
            verdicts=[{key: value for key, value in verdict.items() if key != "round"} for verdict in verdicts],
            metrics_sha256=fingerprint(line),
            model_sha256=self._model(arrays),
        )
        self._requests, self._replies = {}, []

    def finished(self, arrays: ArrayRecord) -> None:
        """The final files."""
        if self.on:
            file = hashlib.sha256(self.folder.model.read_bytes()).hexdigest()
            summary = fingerprint(read_json(self.folder.summary))
            self._say("finished", model_sha256=self._model(arrays), file_sha256=file, summary_sha256=summary)

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """A run that does not finish says so, if it still can."""
        try:
            yield
        except BaseException as error:
            with suppress(OSError, UserError):
                self._say("stopped" if isinstance(error, STOPPED) else "failed", message=last_line(str(error)))
            raise

    def _say(self, event: str, **facts: Any) -> None:
        if self.on:
            self.chain.append(event, run=self.folder.path.name, **facts)

    def _model(self, arrays: ArrayRecord) -> str:
        return sha256(to_state(arrays)) if self.on else ""

    def _sent(self, messages: Sequence[Message], grid: CohortGrid) -> None:
        """Who could be asked, who was, and for what: each record once, by its hash."""
        known: dict[int, str] = {}
        asked = [message.metadata.dst_node_id for message in messages]
        contents: dict[str, dict[str, Any]] = {}
        for message in messages:
            digests = {name: _digest_once(name, record, known) for name, record in message.content.items()}
            content = contents.setdefault(fingerprint(digests), {"records": digests, "clients": []})
            content["clients"].append(message.metadata.dst_node_id)
        self._requests = {
            "available": ranges(grid.get_node_ids()),
            "own_data": ranges(client for client in asked if grid.hosts.has_own_data(client)),
            "requests": [{**content, "clients": ranges(content["clients"])} for content in contents.values()],
        }
        self._replies = []

    def _came(self, reply: Reply) -> None:
        """A reply as it came; kept where that is wanted."""
        if reply.records is None:
            self._replies.append([reply.client, reply.group, "", reply.failure])
            return
        parts = list(pack(reply.records))
        digest = _sha256(parts)
        if self.keeps:
            path = self.folder.replies / f"{digest}.reply"
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, b"".join(parts))
        self._replies.append([reply.client, reply.group, digest, ""])


def ranges(ids: Iterable[int]) -> str:
    """0-9,12"""
    if isinstance(ids, range):
        return f"{ids.start}-{ids.stop - 1}" if len(ids) > 1 else ",".join(map(str, ids))
    runs = [[client for _, client in run] for _, run in groupby(enumerate(sorted(ids)), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _digest_once(name: str, record: Record, known: dict[int, str]) -> str:
    """Requests share their model, so it is hashed only once."""
    if id(record) not in known:
        known[id(record)] = _sha256(pack({name: record}))
    return known[id(record)]


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
