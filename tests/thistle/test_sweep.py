"""`thistle sweep` with real processes: killed and continued, broken cells, Ctrl-C, one Ray for all."""

from __future__ import annotations

import csv
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.federations import TINY, tiny
from tests.thistle.test_cli import start, thistle
from tests.thistle.test_ray import assert_clean
from thistle.engines.flower_programs import EngineError
from thistle.engines.process import RunProcess
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.report.sweeps import read_sweep as report_sweep
from thistle.terminal.progress import RunProgress

pytestmark = pytest.mark.timeout(900)

FIXED = "\n".join(
    f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
    for key, value in TINY.items()
    if key != "runtime.workers"
)
GRID = f"""# Three strategies, three shares of attackers, two seeds.
seeds = [0, 1]
engine = "inline"
columns = "attack.fraction"

[axes]
strategy.name = ["fedavg", "rfa", "median"]
attack.fraction = [0.0, 0.25, 0.5]

[set]
attack.kind = "sign-flip"
{FIXED}

[[expect]]
better = {{ attack.fraction = 0.0 }}
worse = {{ attack.fraction = 0.5 }}
by = -50.0
"""
TWO = f"""seeds = [0]
[axes]
task.min-size = [1, 500]
[set]
{FIXED}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "grid.toml").write_text(text)
    return folder / "runs" / "grid"


def finished(home: Path) -> list[Path]:
    return sorted(home.glob("*/summary.json"))


def wait_for(home: Path, count: int) -> None:
    deadline = time.monotonic() + 400
    while len(finished(home)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def our_workers(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # it may end while we look
            found += [child] if "thistle.engines.process" in " ".join(child.cmdline()) else []
    return found


def test_a_sweep_that_was_killed_half_way_yields_the_same_table(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    home = write(killed, GRID)
    process = start("sweep", "grid.toml", cwd=killed)
    wait_for(home, 7)
    workers = our_workers(psutil.Process(process.pid))
    process.kill()
    process.wait()
    assert workers
    _, alive = psutil.wait_procs(workers, timeout=90)
    assert not alive, "the workers of a killed sweep end by themselves"
    before = {path: path.stat().st_mtime_ns for path in finished(home)}
    assert 7 <= len(before) < 18 and not (home / "sweep.csv").exists()

    done = thistle("sweep", "grid.toml", cwd=killed)
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} finished before" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    other = write(whole, GRID)
    assert thistle("sweep", "grid.toml", "--jobs", "1", cwd=whole).returncode == 0
    assert (home / "sweep.csv").read_bytes() == (other / "sweep.csv").read_bytes()
    assert (home / "sweep.md").read_bytes() == (other / "sweep.md").read_bytes()

    plan = read_json(home / "sweep.json")
    assert len(plan["cells"]) == 18 and plan["axes"]["attack.fraction"] == [0.0, 0.25, 0.5]
    for cell in plan["cells"]:
        assert read_json(RunFolder(home / cell["folder"]).summary)["rounds"] == TINY["rounds"]
    rows = list(csv.DictReader((home / "sweep.csv").open()))
    assert [row["id"] for row in rows] == [cell["id"] for cell in plan["cells"]]
    assert {row["status"] for row in rows} == {"finished"}
    assert {path.name for path in home.glob("*.png")} == {"curves.png", "final.png"}
    assert "held" in done.stdout and read_json(home / "expectations.json")[0]["held"] is True


def test_a_broken_cell_stops_nobody_and_is_named(tmp_path: Path) -> None:
    home = write(tmp_path, TWO)
    for _ in range(2):
        done = thistle("sweep", "grid.toml", "--engine", "inline", "--jobs", "1", cwd=tmp_path)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-2:]
        assert "failed: task.min-size=500 seed=0: task.min-size = 500" in last[0] and "1 cell failed" in last[1]
        assert "Traceback" not in done.stderr
        assert len(finished(home)) == 1
    statuses = [row["status"] for row in csv.DictReader((home / "sweep.csv").open())]
    assert statuses == ["finished", "failed"] and "500 | –" in (home / "sweep.md").read_text()


def test_a_worker_tells_a_disk_that_fails_from_a_process_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(tmp_path, **{"runtime.workers": 1})
    folder, unreadable = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "unreadable")
    folder.create()
    folder.save_experiment(experiment)
    unreadable.log.mkdir(parents=True)
    worker = RunProcess()
    try:
        with pytest.raises(IsADirectoryError):
            worker.carry_out(experiment, folder, RunProgress(unreadable, 4, quiet=True))
        assert not our_workers(psutil.Process())
        worker.carry_out(experiment, folder, RunProgress(folder, 4, quiet=True))
        assert folder.summary.is_file()
        process = worker._process
        assert process is not None
        process.kill()
        process.wait()
        monkeypatch.setattr(process, "poll", lambda: None)  # it dies between the question and the sending
        with pytest.raises(EngineError, match="exit code -9"):
            worker.carry_out(experiment, folder, RunProgress(folder, 4, quiet=True))
    finally:
        worker.end()


def test_ctrl_c_leaves_nothing_behind_and_everything_to_go_on(tmp_path: Path) -> None:
    home = write(tmp_path, TWO.replace("[1, 500]", "[1, 2]").replace("rounds = 4", "rounds = 3000"))
    process = start("sweep", "grid.toml", "--engine", "inline", "--jobs", "2", cwd=tmp_path)
    deadline = time.monotonic() + 400
    while sum(len(list(read_lines(path))) > 2 for path in home.glob("*/metrics.jsonl")) < min(2, os.cpu_count() or 1):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = our_workers(psutil.Process(process.pid))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130
    assert b"continue with the same command" in errors and b"Traceback" not in errors
    assert not [worker for worker in workers if worker.is_running()]
    statuses = {RunFolder(path.parent).get_status()["status"] for path in home.glob("*/status.json")}
    assert statuses == {"stopped"}


def test_two_commands_do_not_share_a_sweep(tmp_path: Path) -> None:
    home = write(tmp_path, TWO)
    home.mkdir(parents=True)
    with RunFolder(home).held():
        done = thistle("sweep", "grid.toml", "--engine", "inline", cwd=tmp_path)
    assert done.returncode == 2 and "this sweep has not ended yet" in done.stderr


def test_a_file_that_is_wrong_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, "[axes]\nclient.lr = [0.1, 'fast']\n")
    done = thistle("sweep", "grid.toml", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "grid: client.lr=fast: client.lr = 'fast': should be a number" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.ray
def test_one_ray_serves_all_cells_and_the_models_are_those_of_inline(tmp_path: Path) -> None:
    before = set(psutil.pids())
    home = write(tmp_path, TWO.replace("[1, 500]", "[1, 2]"))
    done = thistle("sweep", "grid.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_clean(before, patience=5)
    environments = [read_json(path)["hosts"] for path in home.glob("*/environment.json")]
    assert len(environments) == 2 and len({host["ray-node"] for hosts in environments for host in hosts}) == 1
    inline = thistle("sweep", "grid.toml", "--engine", "inline", "--out", "inline", cwd=tmp_path)
    assert inline.returncode == 0, inline.stderr
    assert (home / "sweep.csv").read_bytes() == (tmp_path / "inline" / "grid" / "sweep.csv").read_bytes()


def test_cells_may_name_code_beside_the_file(tmp_path: Path) -> None:
    """Every process that carries out a cell finds it, and the cell keeps its copy."""
    source = "from torch import nn\n\n\ndef flat(shape, classes):\n"
    source += "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
    (tmp_path / "mine.py").write_text(source)
    fixed = "\n".join(line for line in FIXED.splitlines() if not line.startswith("model.name"))
    home = write(tmp_path, f'engine = "inline"\n[axes]\nmodel.name = ["mlp", "mine:flat"]\n[set]\n{fixed}\n')
    thistle("sweep", "grid.toml", cwd=tmp_path)
    assert len(finished(home)) == 2
    assert [path.read_text() for path in home.glob("*/code/mine.py")] == [source]


def test_an_axis_may_be_a_setting_of_a_rule_of_ones_own(tmp_path: Path) -> None:
    examples = (Path(__file__).resolve().parents[2] / "docs" / "own.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", examples, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(next(block for block in blocks if "setting(" in block))
    rule = f'[set]\n{FIXED}\nstrategy.name = "mine:NearMedian"\n'
    home = write(tmp_path, f'engine = "inline"\n[axes]\nstrategy.keep = [0.3, 0.9]\n{rule}')
    done = thistle("sweep", "grid.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(finished(home)) == 2


def test_a_grid_of_attacks_with_none_runs_it_once_and_shows_it_everywhere(tmp_path: Path) -> None:
    axes = 'attack.kind = ["none", "sign-flip"]\nattack.fraction = [0.25, 0.5]\n'
    home = write(tmp_path, f'engine = "inline"\n[axes]\n{axes}[set]\n{FIXED}')
    done = thistle("sweep", "grid.toml", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0 and "3 cells, 0 finished before" in done.stderr, done.stderr
    rows = list(csv.DictReader((home / "sweep.csv").open()))
    assert [(row["attack.kind"], row["attack.fraction"]) for row in rows[:2]] == [("none", "0.25"), ("none", "0.5")]
    assert rows[0]["id"] == rows[1]["id"] and rows[0]["model_sha256"] == rows[1]["model_sha256"] != ""
    assert len(finished(home)) == len(list(csv.DictReader((home / "times.csv").open()))) == 3
    none = next(line for line in (home / "sweep.md").read_text().splitlines() if line.startswith("| none"))
    assert none.split("|")[2] == none.split("|")[3] != " – "
    assert len(report_sweep(home).groups) == 4
    again = thistle("sweep", "grid.toml", "--jobs", "1", cwd=tmp_path)
    assert "3 cells, 3 finished before" in again.stderr
