"""The same figures under the same names: the closing table, sweep tables, the report's data."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import thistle
from tests.federations import TINY, run, tiny
from tests.pages import write_run, write_sweep
from thistle.commands import demo
from thistle.experiments.runfolder import RunFolder, read_json, write_json
from thistle.report.page import report_data
from thistle.report.reading import read_run
from thistle.report.sweeps import as_page, read_sweep
from thistle.results.shown import FIGURES, accuracies, accuracy_line, lifespan, mean_of, worst_class
from thistle.running.launch import show_summary

BACKDOOR = {"attack.kind": "backdoor", "attack.fraction": 0.3, "attack.stop": 2, "evaluate.every": 1}


@pytest.mark.parametrize(
    ("counts", "name"),
    [
        ([3, 3], "3 evaluations"),
        ([1], "evaluation"),
        ([3, 2], "k evaluations"),
        ([None], "k evaluations"),
        ([], "k evaluations"),
    ],
)
def test_a_mean_says_of_what(counts: list[int | None], name: str) -> None:
    assert mean_of(counts) == f"mean of the last {name}"


def test_a_summary_in_words() -> None:
    found = {"last_accuracy": 0.9, "max_accuracy": 0.95, "final_accuracy": 0.8, "evaluations_averaged": 3}
    assert accuracies(found) == {"last accuracy": 0.9, "best accuracy": 0.95, "mean of the last 3 evaluations": 0.8}
    old = {"max_accuracy": 0.95, "final_accuracy": 0.8}
    assert accuracy_line(old) == "best accuracy 0.9500, mean of the last k evaluations 0.8000"
    assert worst_class({"class_accuracy": [0.5, None, 0.25, 0.25]}) == (2, 0.25)
    assert worst_class({"class_accuracy": [None]}) is None is worst_class({})
    assert lifespan({}) == "" and lifespan({"backdoor_lifespan": 7}) == "7 rounds"
    assert lifespan({"backdoor_lifespan": None, "backdoor_lifespan_reason": "never fell"}) == "never fell"


@pytest.mark.parametrize("odd", [3, "x", ["x"], {"worst": "x"}, [None], {}])
def test_a_strangers_summary_does_no_harm(odd: Any) -> None:
    for name in ("class_accuracy", "client_accuracy", "detection", "backdoor_lifespan"):
        assert all(figure.of({name: odd}) in (None, odd, "x") for figure in FIGURES)


def test_the_closing_table_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tiny(tmp_path, **BACKDOOR))
    summary = read_json(folder.summary)
    show_summary(folder)
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    table = {name.strip(): value.strip() for name, value in shown.items()}
    assert table["last accuracy"] == f"{summary['last_accuracy']:.4f}"
    assert table["best accuracy"] == f"{summary['max_accuracy']:.4f}"
    assert table["mean of the last evaluation"] == f"{summary['final_accuracy']:.4f}"
    lowest = min(summary["class_accuracy"])
    assert table["worst class"] == f"{lowest:.4f} (class {summary['class_accuracy'].index(lowest)})"
    clients = summary["client_accuracy"]
    assert table["honest clients: worst, 10th percentile"] == f"{clients['worst']:.4f}, {clients['p10']:.4f}"
    assert table["backdoor lifespan"] == lifespan(summary) and table["seconds of the defence"]
    old = {key: summary[key] for key in ("final_accuracy", "max_accuracy", "rounds", "seconds_per_round")}
    write_json(folder.summary, {**old, "rejected": 0, "failed": 0, "model_sha256": "0" * 64})
    show_summary(folder)
    assert "mean of the last k evaluations" in capsys.readouterr().out, "a run of an older version"


def test_the_demos_table_has_all_three_accuracies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tiny(tmp_path, "rofsl", **BACKDOOR)
    done = {"rofsl": run(experiment)}
    summary = read_json(done["rofsl"].summary)
    demo.show([(experiment, done)], tmp_path)
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.startswith("RoFSL")]
    assert {"last", "best", "mean"} <= set(text.split())
    wanted = [f"{summary[name]:.1%}" for name in ("last_accuracy", "max_accuracy", "final_accuracy")]
    assert row.split()[1:4] == wanted
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_the_demo_takes_ones_own_attack_instead_of_its_two() -> None:
    assert list(demo.attacks_of(["rounds=3"])) == ["mix", "ipm"]
    assert demo.attacks_of(["attack.kind=zero", "rounds=3"]) == {"zero": []}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> thistle.SweepResult:
    """Two ways to end a backdoor, two seeds."""
    fixed = {**TINY, **BACKDOOR}
    fixed.pop("attack.stop")
    plan = {"axes": {"attack.stop": [0, 2]}, "set": fixed, "seeds": [0, 1]}
    return thistle.sweep(
        plan, name="stops", out=tmp_path_factory.mktemp("out"), engine="inline", jobs=1, progress=False
    )


def test_a_sweeps_rows_have_every_figure(grid: thistle.SweepResult) -> None:
    with (grid.folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, cell in zip(rows, grid.runs, strict=True):
        summary = cell.summary
        for name in ("last_accuracy", "max_accuracy", "final_accuracy", "evaluations_averaged", "attack_success"):
            assert float(row[name]) == summary[name]
        lived = summary["backdoor_lifespan"]
        assert row["backdoor_lifespan"] == ("" if lived is None else str(lived))
        assert row["backdoor_lifespan_reason"] == summary.get("backdoor_lifespan_reason", "")
        assert [float(row[f"client_accuracy.{one}"]) for one in ("worst", "p10", "mean")] == [
            *summary["client_accuracy"].values()
        ]
        assert [float(row[f"class_accuracy.{label}"]) for label in range(10)] == summary["class_accuracy"]
    assert not any("second" in name for name in rows[0]), "the same bytes however fast"
    with (grid.folder / "times.csv").open() as file:
        times = [float(row["seconds_defence"]) for row in csv.DictReader(file)]
    assert times == [pytest.approx(cell.summary["seconds_defence"], abs=1e-4) for cell in grid.runs]


def test_a_sweeps_further_figures_stand_below_its_tables(grid: thistle.SweepResult) -> None:
    text = (grid.folder / "sweep.md").read_text()
    main, _, further = text.partition("## Further figures")
    assert "each run's mean of the last evaluation" in main and "worst client" not in main
    head, _, never, after = [line.strip("| ").split(" | ") for line in further.splitlines() if line.startswith("|")]
    assert head[:5] == ["attack.stop", "last", "best", "mean of the last k", "worst class"]
    lasts = [cell.summary["last_accuracy"] for cell in grid.runs if cell.experiment.attack.stop == 2]
    assert after[1].split(" ± ")[0] == f"{100 * fmean(lasts):.1f}"
    lived = head.index("backdoor lifespan, rounds")
    assert never[lived] == "no stop"
    found = [cell.summary["backdoor_lifespan"] for cell in grid.runs if cell.experiment.attack.stop == 2]
    known = [one for one in found if one is not None]
    assert after[lived].startswith(f"{fmean(known):.1f}") if known else after[lived] == "never fell"


def test_the_page_gets_a_runs_figures(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, **BACKDOOR))
    summary = read_json(folder.summary)
    (read,) = report_data([folder.path], [])["runs"]
    assert read["by_class"] == summary["class_accuracy"]
    for name, value in summary["client_accuracy"].items():
        assert read["columns"][f"client_accuracy.{name}"][-1] == value
    assert len(read["columns"]["seconds_defence"]) == 4


def test_damaged_figures_are_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2)
    odd = {"round": 3, "accuracy": 0.5, "class_accuracy": [0.5, "x", None, 1e999], "client_accuracy": {"worst": "x"}}
    with folder.metrics.open("a") as file:
        file.write(json.dumps(odd) + "\n" + json.dumps({"round": 4, "class_accuracy": 7, "client_accuracy": []}) + "\n")
    read = read_run(folder.path, "run")
    assert read.by_class == [0.5, None, None, None] and "client_accuracy.worst" not in read.columns


def test_the_page_gets_a_sweeps_figures(grid: thistle.SweepResult, tmp_path: Path) -> None:
    page = as_page(read_sweep(grid.folder))
    assert page["averaged"] == "mean of the last evaluation"
    columns = {one["name"]: one for one in page["further"]}
    wanted = [fmean(one.summary["client_accuracy"]["worst"] for one in pair) for pair in _pairs(grid)]
    assert [cell["mean"] for cell in columns["worst client"]["cells"]] == pytest.approx(wanted)
    assert columns["seconds of the defence"]["unit"] == "seconds"
    odd = write_sweep(tmp_path / "odd", seeds=1, axes={"strategy.name": ["rfa"]}, unfinished=0)
    cell = RunFolder(next((odd / "cells").iterdir()))
    write_json(cell.summary, {"final_accuracy": 0.5, "evaluations_averaged": ["x"], "class_accuracy": "x"})
    assert [one["name"] for one in as_page(read_sweep(odd))["further"]] == ["mean of the last k"]


def _pairs(grid: thistle.SweepResult) -> list[list[thistle.Run]]:
    return [[cell for cell in grid.runs if cell.experiment.attack.stop == stop] for stop in (0, 2)]
