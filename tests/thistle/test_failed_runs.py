"""A run that comes to nothing ends with exit code 1, whatever carries it out; a destroyed model of a sweep does not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.thistle.test_cli import thistle
from tests.thistle.test_sweep import FIXED, finished, write
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.running.dry_run import IMAGES

pytestmark = pytest.mark.timeout(900)

BROKEN = f"""\
from thistle.attacks.poisoning.build import Poison


def broken(attack, facts):
    def teach(pixels, labels):
        if len(labels) != {IMAGES}:  # as many as it is tried on before the run
            raise ValueError("disk on fire")
        return pixels, labels

    return Poison(data=teach)
"""
EVERYBODY = ("--set", "attack.kind=mine:broken", "--set", "attack.fraction=1.0", "--set", "rounds=8")


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_run_that_learnt_nothing_has_failed_on_every_engine(tmp_path: Path, engine: str) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    done = thistle("run", "digits-clean", "--engine", engine, *EVERYBODY, cwd=tmp_path)
    assert done.returncode == 1
    assert "3 rounds in a row taught the model nothing: 10 of 10 clients failed; the first: client" in done.stderr
    assert "disk on fire" in done.stderr and "thistle resume" in done.stderr and "Traceback" not in done.stderr
    folder = RunFolder(tmp_path / "runs" / "digits-clean")
    assert folder.get_status()["status"] == "failed" and not folder.summary.exists()
    again = thistle("resume", "digits-clean", "--engine", engine, cwd=tmp_path)
    assert again.returncode == 1 and "3 rounds in a row" in again.stderr


def test_lost_rounds_are_said_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    chosen = (*EVERYBODY, "--set", "attack.stop=2", "--set", "rounds=5")
    done = thistle("run", "digits-clean", "--engine", "inline", *chosen, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 of 5 rounds taught the model nothing; the last, round 2: 0 replies" in " ".join(done.stderr.split())
    assert any(line.split() == ["lost", "rounds", "2"] for line in done.stdout.splitlines())


def test_a_cell_that_learnt_nothing_has_failed_and_one_that_an_attack_destroyed_has_a_number(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    fixed = f"{FIXED}\nattack.fraction = 1.0\nattack.strength = 1e9\n"
    home = write(tmp_path, f'engine = "inline"\n[axes]\nattack.kind = ["mine:broken", "scale"]\n[set]\n{fixed}')
    done = thistle("sweep", "grid.toml", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-2:]
    assert "3 rounds in a row taught the model nothing: 4 of 4 clients failed" in last[0] and "RunFailed" not in last[0]
    assert [row["status"] for row in csv.DictReader((home / "sweep.csv").open())] == ["failed", "finished"]
    (summary,) = map(read_json, finished(home))
    assert summary["lost_rounds"] == summary["rounds"] == 4
    assert "4 rounds, 4 of them lost" in done.stderr


ABRUPT = """\
import os
import sys

from thistle.strategies import Pipeline


class Abrupt(Pipeline):
    def rule(self, updates, weights):
        if sys.argv[0] == "-c":  # in the process that carries out runs, not where it is tried before
            os.write(2, b"out of luck\\n")
            os._exit(1)
        return updates.mean(dim=0)
"""


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.ray)])
def test_what_a_process_said_when_it_died_is_passed_on(tmp_path: Path, engine: str) -> None:
    (tmp_path / "mine.py").write_text(ABRUPT)
    (tmp_path / "one.toml").write_text(
        f'preset = "digits-clean"\nengine = "{engine}"\nseeds = [0]\n[set]\nstrategy.name = "mine:Abrupt"\nrounds = 2\n'
        '[axes]\nattack.kind = ["none"]\n'
    )
    done = thistle("sweep", "one.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert "its process died (exit code 1): out of luck" in " ".join(done.stderr.split())
