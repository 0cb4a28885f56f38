"""Runs that end early, and say why; also after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.federations import model_sha, rounds, run, tiny
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_json
from thistle.server.stopping import why_ended


def ended(accuracies: list[float | None], total: int = 100, **stop: Any) -> str:
    lines = [{"round": i} | ({} if value is None else {"accuracy": value}) for i, value in enumerate(accuracies, 1)]
    keys = {f"stop.{name}": value for name, value in stop.items()}
    return why_ended(Experiment.of({"rounds": total, **keys}), lines)


def test_by_default_only_the_last_round_ends_a_run() -> None:
    assert ended([0.99] * 99) == ""
    assert ended([0.99] * 100) == "rounds"


def test_an_accuracy_ends_it() -> None:
    assert ended([0.5, None, 0.79], accuracy=0.8) == ""
    assert ended([0.5, None, 0.8], accuracy=0.8) == "accuracy"
    assert ended([None, None], accuracy=0.8) == ""


@pytest.mark.parametrize(
    ("accuracies", "why"),
    [
        ([0.5, 0.4], ""),
        ([0.5, None, 0.4, None, 0.5], "patience"),
        ([0.5, 0.4, 0.6, 0.5], ""),
        ([0.5, 0.4, 0.6, 0.5, 0.6], "patience"),
    ],
)
def test_patience_counts_evaluations_without_a_new_best(accuracies: list[float | None], why: str) -> None:
    assert ended(accuracies, patience=2) == why


def test_a_run_that_reaches_its_accuracy_stops_and_says_so(tmp_path: Path) -> None:
    whole = run(tiny(tmp_path, "whole", rounds=12))
    wanted = sorted(line["accuracy"] for line in rounds(whole) if "accuracy" in line)[2]
    folder = run(tiny(tmp_path, rounds=12, **{"stop.accuracy": wanted}))
    summary = read_json(folder.summary)
    assert summary["ended"] == "accuracy" and summary["rounds"] < 12
    assert rounds(folder)[-1]["accuracy"] >= wanted
    assert read_json(whole.summary)["ended"] == "rounds"
    again = run(tiny(tmp_path, rounds=12, **{"stop.accuracy": wanted, "run.resume": True}))
    assert read_json(again.summary)["rounds"] == summary["rounds"] and model_sha(again) == summary["model_sha256"]


@pytest.mark.parametrize("strategy", ["rofsl", "fedavg"])
def test_a_paused_run_goes_on_to_the_model_that_it_would_have_had(tmp_path: Path, strategy: str) -> None:
    keys = {"strategy.name": strategy, "client.lr-schedule": "cosine", "attack.kind": "ipm", "attack.fraction": 0.3}
    whole = run(tiny(tmp_path, "whole", **keys))
    folder = run(tiny(tmp_path, **keys, **{"run.until": 2}))
    assert folder.get_status()["status"] == "paused" and not folder.summary.exists()
    assert [line["round"] for line in rounds(folder)] == [1, 2] and "accuracy" in rounds(folder)[-1]
    assert folder.load_experiment().run.until == 0
    again = run(tiny(tmp_path, **keys, **{"run.until": 2, "run.resume": True}))
    assert again.get_status()["status"] == "paused" and len(rounds(again)) == 2
    done = run(tiny(tmp_path, **keys, **{"run.resume": True}))
    assert done.get_status()["status"] == "finished" and model_sha(done) == model_sha(whole)
    assert read_json(done.summary)["final_accuracy"] == read_json(whole.summary)["final_accuracy"]


def test_a_pause_after_the_last_round_is_the_end(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, **{"run.until": 9}))
    assert folder.get_status()["status"] == "finished" and read_json(folder.summary)["rounds"] == 4
