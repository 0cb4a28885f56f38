"""Sites with their own data: one scheme for their tables before a run, their own tests of the model during it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, write_atomically
from thistle.protocol.records import ARRAYS, CONFIG
from thistle.protocol.sites import COLUMNS, SiteScore, summary_text
from thistle.protocol.text import last_line
from thistle.protocol.training import ROUND
from thistle.server.transport.grid import START, CohortGrid, Pending, wait_for_nodes
from thistle.server.transport.hosts import read_bindings
from thistle.tasks.sources.table import lacks_training_rows
from thistle.tasks.tables.agree import Summary, agree, read_summary

logger = logging.getLogger("thistle")
FEW = 3
"""With fewer sites one that lies has as much to say as one that does not."""


def agreed_scheme(experiment: Experiment, folder: RunFolder, grid: Grid) -> str:
    """How the rows of a table become values, where the server has no training rows: as its sites agree. Else empty.

    A run that is continued keeps its scheme.
    """
    if not lacks_training_rows(experiment.task):
        return ""
    if experiment.run.resume and folder.scheme.is_file():
        return folder.scheme.read_text(encoding="utf-8")
    summaries = _ask(experiment, grid)
    if not summaries:
        raise UserError(
            f"task.name = {experiment.task.name}: has no training rows, and no node has its own table "
            "(thistle deploy node --data csv:PATH) that says how columns should be scaled"
        )
    if len(summaries) < FEW:
        logger.warning(
            "only %d site(s) say how columns should be scaled: one that lies would be believed", len(summaries)
        )
    text = agree(summaries).text()
    write_atomically(folder.scheme, text.encode())
    return text


def _ask(experiment: Experiment, grid: Grid) -> list[Summary]:
    """The summaries of the nodes that may take part; who cannot answer is left out, with the reason in the log."""
    bound = read_bindings()
    nodes = wait_for_nodes(grid, experiment.runtime.workers, experiment.client.timeout)
    asked = [
        Message(RecordDict(), dst_node_id=node, message_type=f"query.{COLUMNS}", ttl=START)
        for node in nodes
        if bound is None or node in bound
    ]
    waiting = dict(zip(grid.push_messages(asked), asked, strict=True))
    found: dict[int, Summary] = {}
    deadline = time.monotonic() + START
    while waiting and time.monotonic() < deadline:
        for reply in grid.pull_messages(list(waiting)):
            if waiting.pop(reply.metadata.reply_to_message_id, None) is not None:
                _note(reply, found)
        time.sleep(0.04)
    return [found[node] for node in sorted(found)]


def _note(reply: Message, found: dict[int, Summary]) -> None:
    node = reply.metadata.src_node_id
    try:
        if reply.has_error():
            raise UserError(last_line(reply.error.reason or ""))
        if text := summary_text(reply.content):
            found[node] = read_summary(text)
    except UserError as error:
        logger.warning("node %d does not report its columns: %s", node, error)


@dataclass(frozen=True)
class Sites:
    """Asks each site with its own data how good a model is on the part that it holds out."""

    grid: CohortGrid
    facts: Mapping[str, Any]
    timeout: float

    @property
    def hold_out(self) -> bool:
        """Whether there are such sites."""
        return bool(self.grid.holding_out())

    def ask(self, number: int, arrays: ArrayRecord) -> Pending | None:
        """The model is on its way to them; None where no site holds anything out."""
        clients = self.grid.holding_out()
        if not clients:
            return None
        content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({ROUND: number, **self.facts})})
        messages = [
            Message(content, dst_node_id=client, message_type="evaluate", ttl=self.timeout, group_id=f"{number}/sites")
            for client in clients
        ]
        return self.grid.send(messages, self.timeout)

    def answers(self, pending: Pending | None) -> dict[str, Any]:
        """A line for each site that answered; a score is that site's word alone."""
        if pending is None:
            return {}
        scores = {reply.client: SiteScore.read(reply.records) for reply in pending.wait() if reply.records is not None}
        lines = [
            {"client": client, "accuracy": score.accuracy, "loss": score.loss, "examples": score.examples}
            for client, score in sorted(scores.items())
            if score is not None
        ]
        return {"site_scores": lines} if lines else {}
