"""A grid that never waits for one node; over hosts whose replies block whoever pulls them, as Flower's do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import Message
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.server.federation import Federation
from thistle.server.remote import RemoteGrid
from thistle.strategies.table import resolve
from thistle.tasks.task import prepare_task

from tests.federations import model_sha, rounds, run, tiny
from tests.server.test_grid import EVERYBODY, ScriptedGrid


class SlowGrid(ScriptedGrid):
    """Whoever pulls a reply of a host in `stuck` waits until it is let go."""

    def __init__(self, experiment: Experiment, claims: dict[int, str]) -> None:
        super().__init__(experiment, claims)
        self.stuck: set[int] = set()
        self.let_go = threading.Event()
        self._one_at_a_time = threading.Lock()
        self.unknown: set[int] = set()
        self.unreadable: set[int] = set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list(messages)
        names = list(super().push_messages(pushed))
        return ["" if m.metadata.dst_node_id in self.unknown else name for m, name in zip(pushed, names, strict=True)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        pending = [self._pending[name].metadata for name in names]
        training = [m.dst_node_id for m in pending if m.message_type.startswith("train")]
        if self.unreadable.intersection(training):
            raise ValueError("Object ID mismatch")
        if self.stuck.intersection(training):
            self.let_go.wait(60)
        with self._one_at_a_time:
            return super().pull_messages(names)


def deployed(experiment: Experiment, grid: SlowGrid) -> None:
    """As thistle.server.app runs it over Flower's own grid."""
    resolved = resolve(experiment)
    folder = RunFolder(Path(experiment.run.out) / experiment.run.name)
    folder.create()
    Federation(resolved, prepare_task(resolved.task, resolved.seed, False), folder, RemoteGrid(grid), True).run()


def test_a_node_that_never_uploads_keeps_nobody_elses_reply_and_no_deadline(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 1, "client.timeout": 3.0, "evaluate.every": 1})
    grid = SlowGrid(experiment, {2: "0-2", 3: "3-5"})
    grid.stuck = {3}
    began = time.monotonic()
    try:
        deployed(experiment, grid)
    finally:
        grid.let_go.set()
    verdicts = {line["client"]: line for line in read_lines(tmp_path / "run" / "verdicts.jsonl")}
    assert [verdicts[client]["verdict"] for client in range(6)] == ["accepted"] * 3 + ["failed"] * 3
    assert verdicts[4]["reason"] == "timeout"
    assert time.monotonic() - began < 60  # it was the round's deadline that ended it, not the node


def test_a_deployed_run_gives_the_same_model_and_knows_no_truth(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    experiment = tiny(tmp_path, **EVERYBODY)
    deployed(experiment, SlowGrid(experiment, {2: "0-2", 3: "3-5"}))
    events = [line for line in capsys.readouterr().out.splitlines() if line.startswith("@thistle ")]
    assert len(events) == 3 and '"finished"' in events[-1]
    simulated = run(tiny(tmp_path, "inline", **EVERYBODY))
    here = RunFolder(tmp_path / "run")
    assert model_sha(here) == model_sha(simulated)
    assert read_json(here.truth)["malicious"] is None
    assert read_json(here.summary)["detection"] is None
    assert {line["detection"] for line in rounds(here)} == {None}


def test_a_node_that_is_gone_and_a_reply_that_cannot_be_read_fail_alone(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 2, "evaluate.every": 1})
    grid = SlowGrid(experiment, {2: "0-1", 3: "2-3", 4: "4-5"})
    grid.unreadable = {3}
    greeted = Federation._greet

    def greet(federation: Federation) -> None:
        greeted(federation)
        grid.unknown = {4}

    Federation._greet = greet  # type: ignore[method-assign]
    try:
        deployed(experiment, grid)
    finally:
        Federation._greet = greeted  # type: ignore[method-assign]
    first = [line for line in read_lines(tmp_path / "run" / "verdicts.jsonl") if line["round"] == 1]
    reasons = {line["client"]: line["reason"] for line in first if line["verdict"] == "failed"}
    assert reasons.keys() == {2, 3, 4, 5}
    assert "cannot be read: ValueError" in reasons[2] and "not known" in reasons[4]
