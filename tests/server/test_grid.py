"""The cohort grid over hosts that come, go, are slow, die or own their clients."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.federations import model_sha, rounds, run, tiny
from tests.messages import request
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_lines
from thistle.protocol.layout import to_record
from thistle.server import federation
from thistle.server.transport.dispatch import balance
from thistle.server.transport.grid import CohortGrid
from thistle.server.transport.hosts import Hosts
from thistle.tasks.models import build_model
from thistle.tasks.task import prepare_task

LOST = 0


class ScriptedGrid(InlineGrid):
    """Real hosts with claims; `fate(host, ids, round)` says whether a message is answered: yes, lost or late."""

    def __init__(
        self,
        experiment: Experiment,
        claims: dict[int, str],
        fate: Callable[[int, list[int], int], str] = lambda host, ids, number: "yes",
    ) -> None:
        super().__init__(client_app, experiment, len(claims) or experiment.runtime.workers)
        self.claims, self.fate = claims, fate
        self.sent: list[tuple[int, int, list[int]]] = []
        self.away: set[int] = set()

    def get_node_ids(self) -> Iterable[int]:
        return [host for host in self.hosts if host not in self.away]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies: list[Message] = []
        for name in [name for name in message_ids if name in self._pending]:
            message = self._pending[name]
            if message.metadata.message_type.startswith("train"):
                ids: Any = message.content["cohort"]["ids"]
                host, number = message.metadata.dst_node_id, int(message.metadata.group_id)
                fate = self.fate(host, ids, number)
                if fate == "late":
                    continue
                self.sent.append((number, host, ids))
                if fate == "lost":
                    replies.append(Message(Error(LOST, "gone"), reply_to=self._pending.pop(name)))
                    continue
            replies.append(self._answer(self._pending.pop(name)))
        return replies

    def _answer(self, message: Message) -> Message:
        claim = self.claims.get(message.metadata.dst_node_id, "")
        config = {"clients": claim} if claim else {"simulated": True}
        context = Context(1, message.metadata.dst_node_id, config, RecordDict(), dict(self._run_config))  # type: ignore[arg-type]
        return self.app(message, context)


def test_the_grid_speaks_flower(tmp_path: Path) -> None:
    """A strategy may send messages of its own: one comes back for each, with the records or with the error."""
    experiment = tiny(tmp_path, "flower")
    hosts = Hosts(experiment.task.clients, 100)
    inner = ScriptedGrid(experiment, {}, lambda host, ids, number: "lost" if ids == [2] else "yes")
    grid = CohortGrid(inner, hosts, lambda client: 1, chunk=1, most=1, limit=60.0)
    task = prepare_task(experiment.task, experiment.seed, False)
    facts = ConfigRecord({"classes": list(task.dataset.classes), "shape": list(task.shape)})
    grid.gather(0, 5.0, RecordDict({"config": facts}))
    model = build_model(experiment.network, task.shape, task.classes, experiment.seed)
    config = ConfigRecord({**facts, "lr": 0.1, "server-round": 1})
    content = RecordDict({"arrays": to_record(model.state_dict()), "config": config})
    asked = [Message(content, client, "train", group_id="1") for client in range(4)]
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(asked, timeout=60.0)}
    assert sorted(replies) == [0, 1, 2, 3]
    assert "died" in replies.pop(2).error.reason
    assert all(set(reply.content) == {"arrays", "metrics"} for reply in replies.values())
    assert all(reply.metadata.group_id == "1" for reply in replies.values())


EVERYBODY = {"task.clients": 6, "client.per-round": 6, "rounds": 2}


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 10), st.integers(1, 60)
)
def test_chunks_hold_everybody_once_and_are_balanced(sizes: list[int], hosts: int, chunk: int, most: int) -> None:
    messages = [request(client) for client in range(len(sizes))]
    chunks = balance(messages, sizes.__getitem__, hosts, chunk, most)
    assert sorted(m.metadata.dst_node_id for part in chunks for m in part) == list(range(len(sizes)))
    assert all(chunks)
    if chunk:
        assert all(len(part) <= chunk for part in chunks)
    else:
        assert all(len(part) <= most for part in chunks)
    if not chunk and len(sizes) <= most:
        loads = [sum(sizes[m.metadata.dst_node_id] for m in part) for part in chunks]
        assert len(chunks) <= hosts and max(loads) <= sum(sizes) / hosts + max(sizes)


@pytest.mark.parametrize("strategy", ["rofsl", "flwr-fedavg", "flwr-fedadam"])
def test_packing_does_not_change_a_bit(tmp_path: Path, strategy: str) -> None:
    shas = set()
    for workers, chunk in ((1, 0), (2, 0), (2, 1), (3, 2)):
        packed = {"runtime.workers": workers, "runtime.chunk": chunk, "strategy.name": strategy}
        shas.add(model_sha(run(tiny(tmp_path, f"{workers}-{chunk}", **packed))))
    assert len(shas) == 1


class Watched(InlineGrid):
    """Counts the models that are still alive when a host is about to answer."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(client_app, experiment, experiment.runtime.workers)
        self.answered: list[int] = []
        """How many clients each of the hosts' answers held."""
        self.alive: list[int] = []
        self._models: list[weakref.ref[ArrayRecord]] = []

    def _answer(self, message: Message) -> Message:
        self.alive.append(sum(model() is not None for model in self._models))
        answer = super()._answer(message)
        if message.metadata.message_type.startswith("train"):
            models = [record for record in answer.content.values() if isinstance(record, ArrayRecord)]
            self.answered.append(len(models))
            self._models += map(weakref.ref, models)
        return answer


@pytest.mark.parametrize("strategy", ["fedavg", "rofsl"])
def test_models_are_let_go_before_the_next_are_trained(tmp_path: Path, strategy: str) -> None:
    everybody = {"client.per-round": 12, "rounds": 2, "runtime.chunk": 2, "strategy.name": strategy}
    experiment = tiny(tmp_path, **everybody)
    grid = Watched(experiment)
    run(experiment, grid)
    assert grid.answered == [2] * 12
    assert max(grid.alive) <= 2 * grid.answered[0]


def test_a_message_holds_no_more_models_than_memory_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(tmp_path, "whole", **{"client.per-round": 12, "rounds": 1})
    whole = Watched(experiment)
    expected = model_sha(run(experiment, whole))
    assert whole.answered == [6, 6]
    model = sum(array.nbytes for array in load_file(tmp_path / "whole" / "model.safetensors").values())
    monkeypatch.setattr(federation, "MESSAGE", 2 * model)
    experiment = tiny(tmp_path, "parts", **{"client.per-round": 12, "rounds": 1})
    parts = Watched(experiment)
    assert model_sha(run(experiment, parts)) == expected
    assert parts.answered == [2] * 6


def test_hosts_that_own_their_clients_give_the_same_model(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "claimed", **EVERYBODY)
    grid = ScriptedGrid(experiment, {2: "0-1", 3: "2,4-5", 4: "3"})
    folder = run(experiment, grid)
    assert {(host, tuple(sorted(ids))) for _, host, ids in grid.sent} == {(2, (0, 1)), (3, (2, 4, 5)), (4, (3,))}
    assert model_sha(folder) == model_sha(run(tiny(tmp_path, "shared", **EVERYBODY)))


@pytest.mark.parametrize("strategy", ["fedavg", "flwr-fedavg"])
def test_clients_whose_host_is_away_are_not_sampled_until_it_returns(tmp_path: Path, strategy: str) -> None:
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 3, "strategy.name": strategy})
    grid = ScriptedGrid(experiment, {2: "0-2", 3: "3-5"})

    def fate(host: int, ids: list[int], number: int) -> str:
        grid.away = {3} if number == 1 else set()  # gone before the second round, back before the third
        return "yes"

    grid.fate = fate
    folder = run(experiment, grid)
    asked = [{line["client"] for line in read_lines(folder.verdicts) if line["round"] == n} for n in (1, 2, 3)]
    assert asked == [{0, 1, 2, 3, 4, 5}, {0, 1, 2}, {0, 1, 2, 3, 4, 5}]
    assert all(line["failed"] == 0 for line in rounds(folder))


def test_nobody_at_all_costs_a_round_not_the_run(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 3, "client.timeout": 3.0})
    grid = ScriptedGrid(experiment, {2: "0-2", 3: "3-5"})
    until = [0.0]

    def fate(host: int, ids: list[int], number: int) -> str:
        if number == 1:
            grid.away, until[0] = {2, 3}, time.monotonic() + 4.5
        return "yes"

    grid.fate = fate
    here = grid.get_node_ids
    grid.get_node_ids = lambda: grid.hosts if 0 < until[0] < time.monotonic() else here()  # type: ignore[method-assign]
    lines = rounds(run(experiment, grid))
    assert [line["accepted"] for line in lines] == [6, 0, 6]
    assert "0 replies" in lines[1]["kept"]


def test_a_host_that_is_busy_with_an_old_round_is_not_addressed(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 3, "client.timeout": 3.0})
    grid = ScriptedGrid(experiment, {2: "0-2", 3: "3-5"})
    grid.fate = lambda host, ids, number: "late" if host == 3 and number == 1 else "yes"
    pull = grid.pull_messages

    def hold(message_ids: Iterable[str]) -> Iterable[Message]:
        """Host 3 does not answer a ping either, before the second round is over."""
        met = [grid._pending[name].metadata for name in message_ids if name in grid._pending]
        stuck = bool(grid.sent) and max(grid.sent)[0] == 1
        return pull([m.message_id for m in met if not (stuck and m.dst_node_id == 3)])

    grid.pull_messages = hold  # type: ignore[method-assign]
    folder = run(experiment, grid)
    lines = list(read_lines(folder.verdicts))
    asked = [{line["client"]: line["reason"] for line in lines if line["round"] == number} for number in (1, 2)]
    assert {client for client, reason in asked[0].items() if reason == "timeout"} == {3, 4, 5}
    assert set(asked[1]) == {0, 1, 2}
    assert rounds(folder)[2]["accepted"] == 6


def test_a_lost_host_is_tried_again_client_by_client(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **EVERYBODY)
    grid = ScriptedGrid(experiment, {})
    grid.fate = lambda host, ids, number: "lost" if number == 1 and len(ids) > 1 else "yes"
    folder = run(experiment, grid)
    assert [line["retried"] for line in rounds(folder)] == [6, 0]
    assert model_sha(folder) == model_sha(run(tiny(tmp_path, "whole", **EVERYBODY)))


def test_a_client_that_ends_its_host_fails_alone_and_goes_alone_from_then_on(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{**EVERYBODY, "rounds": 3})
    grid = ScriptedGrid(experiment, {})
    grid.fate = lambda host, ids, number: "lost" if 4 in ids and number < 3 else "yes"
    folder = run(experiment, grid)
    failed = [(line["round"], line["client"]) for line in read_lines(folder.verdicts) if line["verdict"] == "failed"]
    assert failed == [(1, 4), (2, 4)]
    alone = [[ids for number, _, ids in grid.sent if number == n and 4 in ids] for n in (1, 2, 3)]
    assert [len(ids) for ids in alone[0]] == [3, 1, 1, 1, 1]
    assert alone[1:] == [[[4]], [[4]]]
    assert [line["retried"] for line in rounds(folder)] == [6, 0, 0]
