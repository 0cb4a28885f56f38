"""The round loop: reproducible, resumable, and never stopped by a client."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from tests.federations import model_sha, rounds, run, tiny
from thistle.client import honest
from thistle.client.app import KINDS, ping
from thistle.client.app import app as client_app
from thistle.client.work import Work
from thistle.engines.inline import InlineGrid
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_json, read_lines
from thistle.protocol.cohort import ACTION
from thistle.protocol.layout import Layout
from thistle.protocol.training import TrainReply
from thistle.strategies.build import make_strategy
from thistle.strategies.flower import Adapter
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import strategies
from thistle.tasks.task import Task


class Killed(BaseException):
    """What ends a process without asking."""


class MortalGrid(InlineGrid):
    """Dies when the message of a given round is to be answered."""

    def __init__(self, experiment: Experiment, number: int) -> None:
        super().__init__(client_app, experiment, experiment.runtime.workers)
        self.number = number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waiting = list(message_ids)
        if any(self._pending[name].metadata.group_id == str(self.number) for name in waiting if name in self._pending):
            raise Killed
        return super().pull_messages(waiting)


def host(train: Any) -> ClientApp:
    """A host whose clients do `train(client, message, context)`; everything else is the real app's."""
    app = ClientApp()
    app.query("ping")(ping)

    @app.train(ACTION)
    def cohort(message: Message, context: Context) -> Message:
        train(message)
        return client_app(message, context)

    return app


seen: list[int] = []


def taught(experiment: Experiment, task: Task, layout: Layout, *more: object) -> Adapter:
    """The same pipeline as a user's that looks at the messages first."""
    made = make_strategy(experiment, task, layout)
    assert isinstance(made, Pipeline)

    class Taught(type(made)):  # type: ignore[misc]
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            replies = list(replies)
            seen.append(len(replies))
            return super().aggregate_train(server_round, replies)

    made.__class__ = Taught
    return Adapter(made, layout, made.report_losses)


@pytest.mark.parametrize("strategy", ["fedavg", "rofsl", "dsvd", "scaffold"])
def test_messages_and_blocks_give_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    more = {"strategy.name": strategy, "client.momentum": 0.0}
    usual = model_sha(run(tiny(tmp_path, "usual", **more)))
    monkeypatch.setattr("thistle.server.federation.make_strategy", taught)
    seen.clear()
    assert model_sha(run(tiny(tmp_path, "taught", **more))) == usual
    assert seen == [4] * 4


def test_a_run_leaves_everything_it_promises(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path))
    lines = rounds(folder)
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert [("accuracy" in line) for line in lines] == [False, True, False, True]
    assert all(line["accepted"] == 4 and line["bytes_up"] > 0 for line in lines)
    verdicts = list(read_lines(folder.verdicts))
    assert len(verdicts) == 16 and {v["verdict"] for v in verdicts} == {"accepted"}
    summary = read_json(folder.summary)
    wanted = "name rounds final_accuracy max_accuracy seconds seconds_per_round model_sha256 bytes_up bytes_down"
    assert set(wanted.split()) | {"rejected", "failed"} <= summary.keys()
    accuracies = [line["accuracy"] for line in lines if "accuracy" in line]
    assert summary["last_accuracy"] == summary["final_accuracy"] == accuracies[-1]
    assert summary["evaluations_averaged"] == 1, "only the last of four rounds is in their last quarter"
    assert len(list(folder.checkpoints.glob("round-*"))) == 2
    assert folder.get_status()["status"] == "finished"
    assert {"cpu", "packages", "app_sha256"} <= read_json(folder.environment).keys()
    assert folder.load_experiment().run.resume is False


def test_workers_do_not_change_a_bit(tmp_path: Path) -> None:
    shas = {model_sha(run(tiny(tmp_path, f"w{n}", **{"runtime.workers": n}))) for n in (1, 2, 5)}
    assert len(shas) == 1
    assert model_sha(run(tiny(tmp_path, "other", seed=1))) not in shas


@pytest.mark.parametrize("name", strategies())
def test_every_strategy_repeats_and_resumes_exactly(tmp_path: Path, name: str) -> None:
    """Clipped in the rounds before the kill and after it: the bound after it needs the lengths before."""
    clip = {} if name == "dp-fedavg" else {"client.clip": 0.9}  # that one has a bound of its own
    chosen = {"strategy.name": name, "client.per-round": 7, "rounds": 3, **clip}
    whole = run(tiny(tmp_path, "whole", **chosen))
    assert all(line.get("clipped", 0) == 0 if not clip else line["clipped"] > 0 for line in rounds(whole))
    assert all("kept" not in line for line in rounds(whole))
    assert model_sha(run(tiny(tmp_path, "again", **chosen))) == model_sha(whole)
    broken = tiny(tmp_path, "broken", **chosen)
    with pytest.raises(Killed):
        run(broken, MortalGrid(broken, 3))
    resumed = run(tiny(tmp_path, "broken", **chosen, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(whole)
    assert [line["round"] for line in rounds(resumed)] == [1, 2, 3]
    assert [line.get("clip_bound") for line in rounds(resumed)] == [line.get("clip_bound") for line in rounds(whole)]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "early")
    with pytest.raises(Killed):
        run(experiment, MortalGrid(experiment, 1))
    resumed = run(tiny(tmp_path, "early", **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(run(tiny(tmp_path, "straight")))


def test_a_finished_or_begun_folder_is_not_overwritten(tmp_path: Path) -> None:
    run(tiny(tmp_path))
    with pytest.raises(UserError, match=r"run\.name.*exists"):
        run(tiny(tmp_path))


def test_a_client_that_raises_fails_alone_and_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(work: Work) -> TrainReply:
        if work.client % 2:
            raise ValueError("disk on fire")
        return honest.train(work)

    monkeypatch.setitem(KINDS, "honest", broken)
    folder = run(tiny(tmp_path))
    verdicts = list(read_lines(folder.verdicts))
    assert {v["verdict"] for v in verdicts if v["client"] % 2} == {"failed"}
    assert {v["verdict"] for v in verdicts if not v["client"] % 2} == {"accepted"}
    assert all(v["reason"] == "failed: ValueError: disk on fire" for v in verdicts if v["client"] % 2)
    log = folder.log.read_text()
    assert log.count("disk on fire") == 1


def test_a_dead_host_costs_its_clients_only(tmp_path: Path) -> None:
    def die(message: Message) -> None:
        if message.metadata.dst_node_id == 2:
            raise RuntimeError("no memory")

    experiment = tiny(tmp_path)
    folder = run(experiment, InlineGrid(host(die), experiment, 2))
    assert all(line["failed"] == 2 and line["accepted"] == 2 for line in rounds(folder))


def test_too_few_replies_keep_the_model(tmp_path: Path) -> None:
    def die(message: Message) -> None:
        if message.metadata.dst_node_id == 2:
            raise RuntimeError("no memory")

    experiment = tiny(tmp_path, **{"client.min-replies": 3, "stop.lost-rounds": 0})
    folder = run(experiment, InlineGrid(host(die), experiment, 2))
    assert all("client.min-replies" in line["kept"] for line in rounds(folder))
    assert len({line["accuracy"] for line in rounds(folder) if "accuracy" in line}) == 1


class SilentGrid(InlineGrid):
    """One host never answers a training message."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        def silent(name: str) -> bool:
            metadata = self._pending[name].metadata
            return metadata.dst_node_id == 2 and metadata.message_type.startswith("train")

        return super().pull_messages([n for n in message_ids if n in self._pending and not silent(n)])


def test_a_silent_host_is_waited_for_until_the_timeout_only(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, rounds=1, **{"client.timeout": 4.0})
    folder = run(experiment, SilentGrid(client_app, experiment, 2))
    verdicts = list(read_lines(folder.verdicts))
    assert sorted(v["reason"] for v in verdicts) == ["", "", "timeout", "timeout"]
    assert rounds(folder)[0]["seconds"] >= 4.0


def test_a_host_that_cannot_start_ends_the_run_in_one_line(tmp_path: Path) -> None:
    app = ClientApp()

    @app.query("ping")
    def ping(message: Message, context: Context) -> Message:
        raise RuntimeError("no data on this host")

    experiment = tiny(tmp_path)
    with pytest.raises(UserError, match=r"a host could not start: .*no data on this host"):
        run(experiment, InlineGrid(app, experiment, 2))


def test_hosts_that_never_come_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{"client.timeout": 0.2})
    with pytest.raises(UserError, match=r"runtime\.workers = 2: only 1 hosts appeared"):
        run(experiment, InlineGrid(client_app, experiment, 1))


@pytest.mark.parametrize("name", ["fedavg", "flwr-fedadam"])
def test_a_model_with_buffers_resumes_exactly(tmp_path: Path, name: str) -> None:
    chosen = {"model.name": "vgg8", "client.per-round": 2, "rounds": 3, "task.train-size": 120, "strategy.name": name}
    broken = tiny(tmp_path, "broken", **chosen)
    with pytest.raises(Killed):
        run(broken, MortalGrid(broken, 3))
    resumed = run(tiny(tmp_path, "broken", **chosen, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(run(tiny(tmp_path, "whole", **chosen)))


@pytest.mark.parametrize("name", ["fedavg", "median", "flwr-fedadam", "flwr-qfedavg", "flwr-fedmedian"])
def test_buffers_stay_what_they_are(tmp_path: Path, name: str) -> None:
    chosen = {"model.name": "vgg8", "client.per-round": 3, "rounds": 3, "strategy.name": name, "task.train-size": 120}
    folder = run(tiny(tmp_path, **chosen))
    assert [line["accepted"] for line in rounds(folder)] == [3, 3, 3]
    assert not any("kept" in line for line in rounds(folder))
    state = load_file(folder.model)
    counters = {int(value) for key, value in state.items() if key.endswith("num_batches_tracked")}
    assert counters == {3}
    assert all(bool((value > 0).all()) for key, value in state.items() if key.endswith("running_var"))
