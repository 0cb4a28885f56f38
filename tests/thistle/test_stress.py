"""`thistle stress` with real runs: killed and continued, budgets, runs that fail, and bad input."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import thistle as front
from tests.federations import TINY
from tests.thistle.test_cli import start, thistle
from thistle.attacks.stress.suite import VERSION, Candidate, candidates
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.report.sweeps import as_page, read_sweep
from thistle.running.launch import Engine
from thistle.tasks.task import cached_task
from thistle.worst_case.plan import START_UP, Plan, fit
from thistle.worst_case.question import NOBODY, Cells, ask
from thistle.worst_case.search import Search

pytestmark = pytest.mark.timeout(600)

KEYS = {key: value for key, value in TINY.items() if key != "runtime.workers"}
SET = [word for key, value in KEYS.items() for word in ("--set", f"{key}={value}")]
BACKDOORS = ("stress", "digits-clean", *SET, "--suite", "backdoor", "--fractions", "0.5", "--seeds", "2")
NAME = "digits-clean-stress"
ROOT = Path(__file__).resolve().parents[2]


def wait_for(home: Path, runs: int, process: subprocess.Popen[bytes]) -> None:
    """Until this many runs have had a round."""
    deadline = time.monotonic() + 300
    while len([path for path in home.glob("*/metrics.jsonl") if path.stat().st_size]) < runs:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def answers(home: Path) -> dict[str, Any]:
    """What must not depend on interruptions."""
    document = read_json(home / "stress.json")
    return {key: document[key] for key in ("plan", "results", "no_attack", "candidates", "left_out", "failed")}


def test_a_search_that_was_stopped_and_killed_gives_the_same_answer(tmp_path: Path) -> None:
    home = tmp_path / "runs" / NAME
    process = start(*BACKDOORS, cwd=tmp_path)
    wait_for(home, 2, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and b"continue with the same command" in said
    process = start(*BACKDOORS, cwd=tmp_path)
    wait_for(home, 5, process)
    process.kill()
    process.communicate()
    begun = read_json(home / "stress.json")
    assert "results" not in begun and begun["plan"]["pause"] == 2 and not (home / "sweep.json").exists()

    done = thistle(*BACKDOORS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole"
    whole.mkdir()
    assert thistle(*BACKDOORS, "--jobs", "1", cwd=whole).returncode == 0
    assert answers(home) == answers(whole / "runs" / NAME)

    found = read_json(home / "stress.json")
    row = found["results"][0]
    assert row["quote"] in done.stdout and row["quote"].startswith(f"{VERSION} backdoor @ 50 %: success ")
    assert len(row["success_by_seed"]) == row["seeds"] == 2 and 0 <= row["accuracy"] <= 1
    tried = found["candidates"]
    assert {one["label"] for one in tried if not one["varied"]} == {one.label for one in candidates("backdoor")}
    last = [one["success"] for one in tried if one["rung"] == 3]
    assert row["success"] == max(last) and len(last) >= 3
    short = [one for one in tried if one["rung"] == 1]
    for one in short:
        folder = RunFolder(home / one["folders"][0])
        assert folder.get_status()["status"] == "paused" and len(list(read_lines(folder.metrics))) == 2
    assert {path.name for path in home.glob("stress.*")} == {"stress.json", "stress.md", "stress.png"}
    assert row["quote"] in (home / "stress.md").read_text()
    page = as_page(read_sweep(home))
    assert page["stress"]["results"][0]["quote"] == row["quote"] and not page["unfinished"] and page["maps"]

    described = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "stress.md").read_text(encoding="utf-8")))
    rows = [*found["results"], *tried, found["plan"], found["cost"], found["no_attack"]]
    assert set(found).union(*rows) <= described

    again = thistle(*BACKDOORS, cwd=tmp_path)
    assert again.returncode == 0 and "finished before" in again.stderr and "accuracy 0." not in again.stderr
    other = thistle(*BACKDOORS, "--set", "client.lr=0.2", cwd=tmp_path)
    assert other.returncode == 2 and "choose another --name" in other.stderr

    _break(home, row)
    broken = thistle(*BACKDOORS, cwd=tmp_path)
    assert broken.returncode == 1 and "was changed" in broken.stderr and "tries again" in broken.stderr
    assert read_json(home / "stress.json")["failed"] and read_json(home / "stress.json")["results"][0] != row


def _break(home: Path, row: dict[str, Any]) -> None:
    """Somebody edits the run of the second seed."""
    entry = next(one for one in read_json(home / "stress.json")["candidates"] if one["label"] == row["label"])
    folder = RunFolder(home / entry["folders"][1])
    folder.experiment.write_text(folder.experiment.read_text().replace("lr = 0.1", "lr = 0.3"))
    folder.summary.unlink()


def test_a_budget_shrinks_the_search_once_and_for_all(tmp_path: Path) -> None:
    ask_ = ("stress", "digits-mix", *SET, "--fractions", "0.5", "--budget", "0.001")
    done = thistle(*ask_, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "attack.kind, attack.fraction: the experiment's own attack is left out" in done.stderr
    home = tmp_path / "runs" / "digits-mix-stress"
    found = read_json(home / "stress.json")
    plan = found["plan"]
    assert plan["shortened"] and plan["per_kind"] == plan["seeds"] == 1 and plan["seconds_per_round"] > 0
    kinds = [one["attack"] for one in found["candidates"] if not one["varied"]]
    assert kinds == list(dict.fromkeys(one.kind for one in candidates("standard")))
    assert f"{VERSION} within 0.001 min @ 50 %: " in done.stdout
    lowest = min(one["accuracy"] for one in found["candidates"] if one["rung"] == 3)
    assert found["results"][0]["accuracy"] == lowest

    (home / "stress.json").write_text((home / "stress.json").read_text().replace('"pause": 2', '"pause": 4'))
    thistle(*ask_, cwd=tmp_path)
    assert read_json(home / "stress.json")["plan"] == {**plan, "pause": 4}, "the plan that was begun is followed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fractions", "0.3,x"], "--fractions 0.3,x: should be different numbers between 0 and 1"),
        (["--fractions", "0.3,0.3"], "--fractions 0.3,0.3"),
        (["--fractions", "1.5"], "--fractions 1.5"),
        (["--fractions", "0.001"], "attack.fraction = 0.001: that is less than one of task.clients = 50"),
        (["--suite", "hard"], "--suite hard: should be standard, backdoor or all"),
        (["--seeds", "0"], "--seeds 0: should be a whole number, 1 or more"),
        (["--budget", "-1"], "--budget -1.0: should be minutes, more than 0"),
        (["--budget", "nan"], "--budget nan: should be minutes"),
        (["--set", "attack.kind=ipm"], "--set attack.kind: stress sets it for each run"),
        (["--set", "seed=4"], "--set seed: stress sets it"),
        (["--set", "run.until=4"], "--set run.until: stress sets it"),
        (["--set", "client.lr=-1"], "client.lr = -1"),
        (["--name", "a/b"], "run.name = 'a/b': should be a plain name"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["stress", "digits-clean", *words, "--out", str(tmp_path / "runs")])
    assert isinstance(done.exception, UserError) and said in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "sweep.json").write_text("{}")
    done = thistle("stress", "digits-clean", *SET, "--out", str(tmp_path), "--name", "grid", cwd=tmp_path)
    assert done.returncode == 2 and "holds something else; choose another --name" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and (tmp_path / "grid" / "sweep.json").read_text() == "{}"


def test_a_dry_run_lists_what_would_be_tried(tmp_path: Path) -> None:
    done = thistle("stress", "digits-clean", "--dry-run", "--suite", "all", cwd=tmp_path)
    assert done.returncode == 0 and not (tmp_path / "runs").exists()
    assert all(one.label in done.stdout for one in candidates("all"))


def test_what_the_task_does_not_allow_is_left_out_and_named(tmp_path: Path) -> None:
    search = Search(ask("digits-clean", fractions=[0.3], suite="all"), tmp_path / "x", Engine.INLINE, quiet=True)
    possible, left_out = search.prepare()
    assert possible == candidates("all") and not left_out
    cells = Cells(search.question, tmp_path / "x")
    flip = next(one for one in possible if one.kind == "label-flip-targeted")
    whole = cached_task(search.cells.cell(NOBODY, 0.0, 0).experiment.task, 0)
    assert cells.refused(flip, 0.3, whole) == ""
    single = replace(whole, dataset=replace(whole.dataset, classes=whole.dataset.classes[:1]))
    assert "attack.target = 1: the task's classes are 0-0" in cells.refused(flip, 0.3, single)


def test_from_python(tmp_path: Path) -> None:
    result = front.stress(
        {**KEYS, "strategy.name": "median"},
        fractions=[0.5],
        suite="backdoor",
        seeds=1,
        out=tmp_path,
        name="mine",
        progress=False,
    )
    row = result.worst[0.5]
    assert row == result.worst_backdoor[0.5] and row["quote"] in repr(result)
    assert result.folder == tmp_path / "mine" and not result.failed and not result.left_out
    assert max(one["success"] for one in result.table if one["rung"] == 3) == row["success"]
    assert 0 < result.no_attack["accuracy"] <= 1 and {run.status for run in result.runs} == {"finished", "paused"}
    assert result.report().is_file()
    for wrong in ({"suite": "hard"}, {"fractions": 0.3}, {"seeds": 1.5}, {"budget": "soon"}, {"jobs": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            front.stress("digits-clean", out=tmp_path / "none", **wrong)
    assert not (tmp_path / "none").exists()


TRIED = [Candidate(kind, "standard", (("attack.strength", x),)) for kind in "abcd" for x in (0.1, 1.0, 10.0)]
WHOLE = Plan(rounds=60, pause=20, seeds=3)


def test_a_plan_is_as_large_as_its_budget_allows() -> None:
    whole = WHOLE.total(TRIED, 2) * START_UP * 0.1 / 2 / 60
    assert fit(WHOLE, TRIED, 2, 0.1, 2, 1.01 * whole) == Plan(60, 20, 3, None, False, 0.1)
    sizes = [fit(WHOLE, TRIED, 2, 0.1, 2, share * whole) for share in (0.99, 0.7, 0.5, 0.3, 0.1, 0.001)]
    totals = [plan.total(TRIED, 2) for plan in sizes]
    assert totals == sorted(totals, reverse=True) and all(plan.shortened for plan in sizes)
    assert sizes[0].per_kind == 2 and sizes[0].seeds == 3, "first fewer candidates"
    assert (sizes[-1].per_kind, sizes[-1].seeds) == (1, 1), "the least that there is"
    assert [one.settings[0][1] for one in sizes[0].chosen(TRIED)] == [0.1, 1.0] * 4
    assert Plan.of(sizes[0].document()) == sizes[0]
