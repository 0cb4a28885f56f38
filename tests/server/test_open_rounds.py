"""Evaluations that go on while the next round's clients train: the same files, whatever happens in between."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from tests.federations import model_sha, rounds, run, timeless, tiny, verdicts
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.errors import RunFailed
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.server.evaluation import Evaluation
from thistle.server.recording.checkpoint import load_checkpoint

SETTINGS: dict[str, Any] = {
    "evaluate.every": 1,
    "evaluate.attacks": "fgsm,pgd20",
    "evaluate.attack-samples": 20,
    "evaluate.batch-size": 50,
    "attack.kind": "backdoor",
    "attack.fraction": 0.3,
}


class Killed(BaseException):
    """What ends a process without asking."""


class FreeGrid(InlineGrid):
    """Its clients are said to be elsewhere; `before` sees each round's number before a host is answered."""

    runs_clients_here = False

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(client_app, experiment, experiment.runtime.workers)

    def before(self, number: str) -> None:
        """Nothing, here."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waiting = list(message_ids)
        for number in {self._pending[name].metadata.group_id for name in waiting if name in self._pending}:
            self.before(number)
        return super().pull_messages(waiting)


class EndingGrid(FreeGrid):
    """Raises when round 3's clients are at work, and round 2's model is being evaluated."""

    end: BaseException = Killed()

    def before(self, number: str) -> None:
        if number == "3":
            raise self.end


def free(out: Path, name: str, grid: type[FreeGrid] = FreeGrid, **more: Any) -> RunFolder:
    experiment = tiny(out, name, **{**SETTINGS, **more})
    return run(experiment, grid(experiment))


def written(folder: RunFolder) -> tuple[object, ...]:
    """All but the times."""
    return timeless(folder), verdicts(folder), model_sha(folder)


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """What a run leaves that evaluates each model before the next round."""
    return written(run(tiny(tmp_path_factory.mktemp("once"), **SETTINGS)))


def test_the_files_are_the_same(tmp_path: Path, at_once: tuple[object, ...]) -> None:
    folder = free(tmp_path, "free")
    assert written(folder) == at_once
    lines = rounds(folder)
    assert all(line["seconds_evaluation"] > 0 for line in lines)
    assert all(line["seconds"] == line["seconds_training"] for line in lines[:-1])
    assert lines[-1]["seconds"] == lines[-1]["seconds_training"] + lines[-1]["seconds_evaluation"]


def test_it_is_over_only_after_the_next_clients_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    measure = Evaluation.measure

    class Watched(FreeGrid):
        def before(self, number: str) -> None:
            if number == "2":
                assert not rounds(folder), "the line of round 1 waits"
                begun.set()

    def patient(self: Evaluation, *what: Any) -> dict[str, Any]:
        assert begun.wait(60), "round 2 does not wait for the evaluation of round 1"
        return measure(self, *what)

    monkeypatch.setattr(Evaluation, "measure", patient)
    folder = RunFolder(tmp_path / "watched")
    free(tmp_path, "watched", Watched)
    assert [line["round"] for line in rounds(folder)] == [1, 2, 3, 4]


@pytest.mark.parametrize("end", [Killed(), KeyboardInterrupt()], ids=["killed", "stopped"])
def test_a_run_that_ends_meanwhile_is_continued_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: tuple[object, ...], end: BaseException
) -> None:
    monkeypatch.setattr(EndingGrid, "end", end)
    with pytest.raises(type(end)):
        free(tmp_path, "broken", EndingGrid)
    folder = RunFolder(tmp_path / "broken")
    checkpoint = load_checkpoint(folder.checkpoints)
    assert checkpoint is not None and checkpoint.round == 2, "round 2 is not lost"
    assert [line["round"] for line in rounds(folder)] == [1] and "open" in checkpoint.plain
    with folder.verdicts.open("a") as file:
        file.write('{"round": 2, "client": 0}\n')  # as of a server that was killed between the two files
    assert written(free(tmp_path, "broken", **{"run.resume": True})) == at_once
    assert not [thread for thread in threading.enumerate() if thread.name == "background"]


def test_a_line_that_was_written_is_not_written_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "late")
    with pytest.raises(Killed):
        free(tmp_path, "late", EndingGrid)
    before = (folder.path / "metrics.jsonl").read_text()
    with folder.metrics.open("a") as file:
        file.write('{"round": 2, "accuracy": 0.5, "written": 1, "seconds": 1, "detection": null}\n')
    free(tmp_path, "late", **{"run.resume": True})
    assert folder.metrics.read_text().startswith(before) and rounds(folder)[1]["written"] == 1
    assert [line["round"] for line in rounds(folder)] == [1, 2, 3, 4]


def test_early_stopping_waits_for_the_evaluation(tmp_path: Path) -> None:
    more = {"stop.patience": 1, "client.lr": 1e-9, "evaluate.attacks": "", "rounds": 5}
    folder = free(tmp_path, "patient", **more)
    assert read_json(folder.summary)["ended"] == "patience" and len(rounds(folder)) == 2


def test_a_paused_run_has_all_its_lines(tmp_path: Path, at_once: tuple[object, ...]) -> None:
    folder = free(tmp_path, "paused", **{"run.until": 2})
    assert [line["round"] for line in rounds(folder)] == [1, 2] and "accuracy" in rounds(folder)[1]
    assert written(free(tmp_path, "paused", **{"run.resume": True})) == at_once


def test_a_run_that_fails_has_the_lines_of_its_lost_rounds(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="2 rounds in a row"):
        free(tmp_path, "lost", **{"stop.lost-rounds": 2, "client.lr": 1e30, "evaluate.attacks": ""})
    lines = rounds(RunFolder(tmp_path / "lost"))
    assert [("accuracy" in line, "kept" in line) for line in lines] == [(True, True)] * 2


def test_an_evaluation_that_raises_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Evaluation, *what: Any) -> dict[str, Any]:
        raise ValueError("no such image")

    monkeypatch.setattr(Evaluation, "measure", broken)
    with pytest.raises(ValueError, match="no such image"):
        free(tmp_path, "raises")
    assert RunFolder(tmp_path / "raises").get_status()["message"] == "ValueError: no such image"
