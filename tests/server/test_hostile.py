"""9 honest clients and a hostile one, through every strategy: each round another trick, none of them matters.

The reference is the same run in which that client simply fails: the models must be equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from tests.federations import model_sha, rounds, run, tiny
from tests.hostile import HOSTILE
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_lines
from thistle.protocol.cohort import Record, pack_replies, unpack_replies
from thistle.strategies.registry import strategies

HOST = 5
MARKUP = "[bold]" + "<script>alert(1)</script>\x1b[31m" * 400_000

LOSSES = ("loss 1e30", "loss NaN")
"""What an honest client may report of a ruined model."""

Reply = RecordDict | str
Trick = Callable[[Reply], Reply]

TRICKS: dict[str, tuple[Trick, str, str]] = {
    name: (trick, "rejected", reason)  # type: ignore[misc]
    for name, (trick, reason) in HOSTILE.items()
    if "variance" not in name and "counter" not in name and name not in ("no records", *LOSSES)
}
TRICKS["10 MB of markup"] = (lambda _: MARKUP, "failed", "failed: ")
TRICKS["no answer"] = (lambda _: RecordDict(), "failed", "failed: the host sent no result")
NAMES = list(TRICKS)


def whole(found: dict[str, Record] | str) -> Reply:
    return found if isinstance(found, str) else RecordDict(found)  # type: ignore[arg-type]


class TamperedGrid(InlineGrid):
    """Lets one client's reply be replaced on its way out of the host."""

    def __init__(self, experiment: Experiment, tamper: Callable[[int, Reply], Reply]) -> None:
        super().__init__(client_app, experiment, experiment.runtime.workers)
        self.tamper = tamper

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if not message.metadata.message_type.startswith("train"):
            return reply
        ids: Any = message.content["cohort"]["ids"]
        replies = dict(unpack_replies(reply.content, ids))
        if HOST in replies:
            replies[HOST] = self.tamper(int(message.metadata.group_id), whole(replies[HOST]))
        return Message(pack_replies(replies.items()), reply_to=message)


def ten(out: Path, name: str, **more: Any) -> Experiment:
    """Ten clients of ten images, all of them asked in every round."""
    small = {"task.clients": 10, "client.per-round": 10, "task.train-size": 100, "client.batch-size": 10}
    ours = not str(more.get("strategy.name", "")).startswith("flwr-")
    often = {"evaluate.every": 100, **({"strategy.server-epochs": 1} if ours else {})}
    return tiny(out, name, **{**small, **often, **more})


def some(strategy: str) -> list[str]:
    """A few tricks, other ones for every strategy, so that all of them are tried."""
    start = list(strategies()).index(strategy) * 4
    return [NAMES[(start + i) % len(NAMES)] for i in range(4)]


@pytest.mark.parametrize("strategy", strategies())
def test_no_trick_matters(tmp_path: Path, strategy: str) -> None:
    assert {name for each in strategies() for name in some(each)} == set(NAMES)
    check(tmp_path, strategy, some(strategy))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", strategies())
def test_no_trick_at_all_matters(tmp_path: Path, strategy: str) -> None:
    check(tmp_path, strategy, NAMES)


def check(tmp_path: Path, strategy: str, names: list[str]) -> None:
    """Each round another trick, against a run in which that client fails."""
    chosen = {"strategy.name": strategy, "rounds": len(names)}
    hostile = ten(tmp_path, "hostile", **chosen)
    folder = run(hostile, TamperedGrid(hostile, lambda number, reply: TRICKS[names[number - 1]][0](reply)))
    for verdict in read_lines(folder.verdicts):
        name = names[verdict["round"] - 1]
        _, kind, reason = TRICKS[name]
        if verdict["client"] == HOST:
            assert verdict["verdict"] == kind, name
            assert verdict["reason"].startswith(reason), name
            assert len(verdict["reason"]) <= 210 and verdict["reason"].isprintable(), name
        else:
            assert verdict["verdict"] in ("accepted", "filtered"), name
    assert len(rounds(folder)) == len(names)
    assert not any("kept" in line for line in rounds(folder))
    failing = ten(tmp_path, "failing", **chosen)
    reference = run(failing, TamperedGrid(failing, lambda number, reply: "gone"))
    assert model_sha(folder) == model_sha(reference)


@pytest.mark.parametrize("strategy", ["fedavg", "rofsl", "dsvd", "flwr-fedavg", "flwr-qfedavg"])
def test_a_client_that_reports_an_absurd_loss_takes_part_as_ever(tmp_path: Path, strategy: str) -> None:
    """No strategy of ours decides by it, so the model is what it would have been."""
    chosen = {"strategy.name": strategy, "rounds": len(LOSSES)}
    odd = ten(tmp_path, "odd", **chosen)
    folder = run(odd, TamperedGrid(odd, lambda number, reply: HOSTILE[LOSSES[number - 1]][0](reply)))  # type: ignore[arg-type]
    assert all(verdict["verdict"] != "rejected" for verdict in read_lines(folder.verdicts))
    assert all(10 <= line["train_loss"] < 20 for line in rounds(folder))  # a tenth of it is that client's 100
    assert model_sha(folder) == model_sha(run(ten(tmp_path, "usual", **chosen)))


def test_claims_of_size_are_capped(tmp_path: Path) -> None:
    """Six of ten that claim a billion examples move FedAvg no more than six honest claims would."""

    def boast(number: int, reply: Reply) -> Reply:
        assert isinstance(reply, RecordDict)
        metrics = reply.metric_records["metrics"]
        metrics["num-examples"] = 10**9
        return reply

    class Boasters(TamperedGrid):
        def _answer(self, message: Message) -> Message:
            reply = InlineGrid._answer(self, message)
            if not message.metadata.message_type.startswith("train"):
                return reply
            ids: Any = message.content["cohort"]["ids"]
            replies = unpack_replies(reply.content, ids)
            return Message(pack_replies((i, boast(1, whole(r)) if i < 6 else r) for i, r in replies), reply_to=message)

    for strategy in ("fedavg", "flwr-fedavg"):
        chosen = {"strategy.name": strategy, "rounds": 2}
        experiment = ten(tmp_path, f"boast-{strategy}", **chosen)
        boasted = run(experiment, Boasters(experiment, boast))
        assert model_sha(boasted) == model_sha(run(ten(tmp_path, f"honest-{strategy}", **chosen)))


def test_a_doubled_and_a_stale_host_reply_count_once(tmp_path: Path) -> None:
    class Echo(InlineGrid):
        """Delivers every reply twice, and last round's again."""

        last: list[Message] = []  # noqa: RUF012

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            replies = list(super().pull_messages(message_ids))
            doubled = [*replies, *replies, *self.last]
            self.last = replies
            return doubled

    chosen = {"rounds": 3}
    experiment = ten(tmp_path, "echo", **chosen)
    folder = run(experiment, Echo(client_app, experiment, 2))
    assert model_sha(folder) == model_sha(run(ten(tmp_path, "plain", **chosen)))
