"""Rounds that teach the model nothing: a few are counted, a row of them is a run that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.federations import model_sha, rounds, run, tiny
from thistle.client import honest
from thistle.client.app import KINDS
from thistle.client.work import Work
from thistle.experiments.errors import RunFailed
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.protocol.training import TrainReply
from thistle.server.recording.checkpoint import load_checkpoint
from thistle.strategies.pipeline import Pipeline

Break = Callable[[Callable[[int, int], bool]], None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Clients raise an error where a condition on (client, round) holds."""

    def use(condition: Callable[[int, int], bool]) -> None:
        def train(work: Work) -> TrainReply:
            if condition(work.client, work.round):
                raise ValueError("disk on fire")
            return honest.train(work)

        monkeypatch.setitem(KINDS, "honest", train)

    return use


def failed(tmp_path: Path, **more: Any) -> tuple[RunFolder, str]:
    """The folder of a run that fails, and its message."""
    with pytest.raises(RunFailed):
        run(tiny(tmp_path, **{"rounds": 10, **more}))
    folder = RunFolder(tmp_path / "run")
    status = folder.get_status()
    assert status["status"] == "failed"
    assert not folder.summary.exists()
    return folder, status["message"]


def test_a_run_whose_clients_all_fail_fails_and_says_why(tmp_path: Path, broken: Break) -> None:
    broken(lambda client, number: True)
    folder, message = failed(tmp_path)
    assert message.startswith("3 rounds in a row taught the model nothing: 4 of 4 clients failed; the first: client ")
    assert message.endswith(": ValueError: disk on fire")
    assert [line["round"] for line in rounds(folder)] == [1, 2, 3]
    assert message in folder.log.read_text() and "Traceback" not in folder.log.read_text()


def test_a_strategy_that_always_raises_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def aggregate(*_: object) -> None:
        raise ZeroDivisionError("no weights")

    monkeypatch.setattr(Pipeline, "next_model", aggregate)
    _, message = failed(tmp_path)
    assert message.endswith("taught the model nothing: aggregate.failed: ZeroDivisionError: no weights")


def test_replies_that_are_all_rejected_fail_the_run_unless_that_is_a_result(tmp_path: Path) -> None:
    everybody = {"attack.kind": "scale", "attack.fraction": 1.0, "attack.strength": 1e9}
    _, message = failed(tmp_path, **everybody)
    assert "4 of 4 replies were rejected; the first: client " in message
    folder = run(tiny(tmp_path, "result", **everybody, **{"stop.lost-if-rejected": False}))
    summary = read_json(folder.summary)
    assert (summary["rounds"], summary["lost_rounds"]) == (4, 4)
    assert load_checkpoint(folder.checkpoints).round == 4  # type: ignore[union-attr]


def test_so_is_a_model_of_which_so_few_replies_are_left_that_the_rule_raises(tmp_path: Path) -> None:
    ruined = {"attack.kind": "scale", "attack.strength": 1e9, "attack.clients": "0-10"}
    ruined |= {"strategy.name": "krum", "strategy.malicious": 1, "client.per-round": 12}
    _, message = failed(tmp_path, **ruined)
    assert "aggregate.failed: ValueError: Krum needs" in message and "11 of 12 replies were rejected" in message
    folder = run(tiny(tmp_path, "result", **ruined, **{"stop.lost-if-rejected": False}))
    summary = read_json(folder.summary)
    assert (summary["rounds"], summary["lost_rounds"]) == (4, 4)


def test_clients_that_fail_are_no_attack_that_won(tmp_path: Path, broken: Break) -> None:
    broken(lambda client, number: True)
    _, message = failed(tmp_path, **{"stop.lost-if-rejected": False})
    assert "disk on fire" in message


def test_too_few_replies_are_named_with_the_first_error(tmp_path: Path, broken: Break) -> None:
    broken(lambda client, number: client % 2 == 1)
    _, message = failed(tmp_path, **{"client.per-round": 12, "client.min-replies": 7})
    assert "6 replies, client.min-replies = 7, 6 of 12 clients failed; the first: client 1: ValueError" in message


def test_how_many_is_a_setting_and_none_is_never(tmp_path: Path, broken: Break) -> None:
    broken(lambda client, number: True)
    folder, message = failed(tmp_path, **{"stop.lost-rounds": 5})
    assert message.startswith("5 rounds in a row") and len(rounds(folder)) == 5
    folder = run(tiny(tmp_path, "never", **{"stop.lost-rounds": 0}))
    assert read_json(folder.summary)["lost_rounds"] == 4


def test_a_short_run_that_learnt_nothing_at_all_has_failed_too(tmp_path: Path, broken: Break) -> None:
    broken(lambda client, number: True)
    _, message = failed(tmp_path, rounds=1)
    assert message.startswith("1 round, and the model learnt nothing: 4 of 4 clients failed")


def test_fewer_are_counted_and_said_at_the_end(tmp_path: Path, broken: Break, caplog: pytest.LogCaptureFixture) -> None:
    broken(lambda client, number: number in (2, 3, 5, 6))
    folder = run(tiny(tmp_path, rounds=7))
    assert folder.get_status()["status"] == "finished"
    assert read_json(folder.summary)["lost_rounds"] == 4
    assert caplog.messages[-1].startswith("4 of 7 rounds taught the model nothing; the last, round 6: 0 replies")
    assert read_json(run(tiny(tmp_path, "second", rounds=1)).summary)["lost_rounds"] == 0
    assert "taught" not in (tmp_path / "second" / "log.txt").read_text()


@pytest.mark.parametrize("first", [1, 4])
def test_resumed_without_its_cause_it_has_the_model_of_an_undisturbed_run(
    tmp_path: Path, broken: Break, first: int
) -> None:
    chosen = {"rounds": 8, "strategy.reputation": True, "strategy.name": "rofsl"}
    broken(lambda client, number: number >= first)
    folder, _ = failed(tmp_path, **chosen)
    assert len(rounds(folder)) == first + 2
    with pytest.raises(RunFailed, match="3 rounds in a row"):  # the cause is still there: as many rounds again
        run(tiny(tmp_path, **chosen, **{"run.resume": True}))
    broken(lambda client, number: False)
    resumed = run(tiny(tmp_path, **chosen, **{"run.resume": True}))
    assert [line["round"] for line in rounds(resumed)] == list(range(1, 9))
    assert read_json(resumed.summary)["lost_rounds"] == 0
    assert model_sha(resumed) == model_sha(run(tiny(tmp_path, "whole", **chosen)))


def test_a_server_that_learns_alone_needs_no_accepted_client(tmp_path: Path) -> None:
    everything = {"strategy.name": "rofsl", "strategy.filter": "angle", "strategy.angle": 1.0}
    folder = run(tiny(tmp_path, rounds=5, **everything))
    assert all(line["accepted"] == 0 and line["filtered"] == 4 for line in rounds(folder))
    assert read_json(folder.summary)["lost_rounds"] == 0
