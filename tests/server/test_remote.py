"""A grid that never waits for one node; over hosts whose replies block the caller, as Flower's do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.exit import exit_handler
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import HttpGrid

from tests.federations import model_sha, rounds, run, tiny
from tests.server.test_grid import EVERYBODY, ScriptedGrid
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.protocol.wakeup import REPLIES
from thistle.server.federation import Federation
from thistle.server.recording.checkpoint import load_checkpoint
from thistle.server.transport.remote import RemoteGrid
from thistle.strategies.build import resolve
from thistle.tasks.task import prepare_task


class SlowGrid(ScriptedGrid):
    """A caller that pulls a reply of a host in `stuck` waits until it is released."""

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
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 1, "client.timeout": 8.0, "evaluate.every": 1})
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
    assert not any("client_accuracy" in line for line in [*rounds(here), read_json(here.summary)])
    assert read_json(here.summary)["class_accuracy"] == read_json(simulated.summary)["class_accuracy"]


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


class StoppedLink(HttpGrid):
    """Flower's own grid, over hosts in this process; from a round on, whatever asks it hears that the run is over."""

    def __init__(self, inner: SlowGrid, number: int) -> None:
        super().__init__(token="x")
        self.inner, self.number = inner, number

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        if any(self.inner._pending[name].metadata.group_id == str(self.number) for name in names):
            raise RunNotRunningException
        return self.inner.pull_messages(names)


def test_a_run_that_is_stopped_while_the_server_waits_ends_as_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unseen.append)
    chosen = {**EVERYBODY, "rounds": 4, "client.timeout": 30.0}
    experiment = tiny(tmp_path, **chosen)
    with pytest.raises(SystemExit) as end:
        run(experiment, StoppedLink(SlowGrid(experiment, {2: "0-2", 3: "3-5"}), 3))
    folder = RunFolder(tmp_path / "run")
    assert end.value.code == 1
    assert folder.get_status()["status"] == "stopped"
    assert "can be continued" in folder.get_status()["message"]
    assert '"event": "stopped"' in capsys.readouterr().out
    assert load_checkpoint(folder.checkpoints).round == 2  # type: ignore[union-attr]
    assert unseen == []
    resumed = run(tiny(tmp_path, **chosen, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(run(tiny(tmp_path, "whole", **chosen)))


def test_no_question_is_answered_once_a_thread_has_heard_that_the_run_is_over(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **EVERYBODY)
    inner = SlowGrid(experiment, {2: "0-2"})
    grid = RemoteGrid(StoppedLink(inner, 1))
    (name,) = grid.push_messages([Message(RecordDict(), dst_node_id=2, message_type="query.ping", group_id="1")])
    list(grid.pull_messages([name]))
    REPLIES.wait()
    for question in (lambda: grid.pull_messages([name]), grid.get_node_ids, lambda: grid.push_messages([])):
        with pytest.raises(RunNotRunningException):
            _until_it_raises(question)


def _until_it_raises(question: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        question()


@pytest.mark.parametrize("late", [False, True])
def test_a_signal_that_ends_the_process_leaves_a_stopped_run(tmp_path: Path, late: bool) -> None:
    """As Flower's handler does it: first what is to be done before the end, then SystemExit in the main thread."""

    class Ended(InlineGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            waiting = [self._pending[name] for name in message_ids if name in self._pending]
            if any(message.metadata.group_id == "3" for message in waiting):
                if late:  # Flower's five seconds are over before Python unwinds
                    exit_handler.trigger_exit_handlers(run_before_force_exit=True)
                    told.append(RunFolder(tmp_path / "run").get_status()["status"])
                raise SystemExit(0)
            return super().pull_messages(message_ids)

    told: list[str] = []
    experiment = tiny(tmp_path)
    with pytest.raises(SystemExit):
        run(experiment, Ended(client_app, experiment, 2))
    assert told == ["stopped"] * late
    folder = RunFolder(tmp_path / "run")
    assert folder.get_status()["status"] == "stopped"
    assert load_checkpoint(folder.checkpoints).round == 2  # type: ignore[union-attr]


def test_a_run_that_is_over_is_not_called_stopped_when_flower_ends_the_process(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path))
    exit_handler.trigger_exit_handlers(run_before_force_exit=True)
    assert folder.get_status()["status"] == "finished"
