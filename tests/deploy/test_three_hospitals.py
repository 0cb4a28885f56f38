"""examples/three-hospitals: docs/three-hospitals.md, from nothing to a report, with real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.federations import Running, stopped_at_the_end, thistle
from thistle.experiments.runfolder import RunFolder, read_json, read_lines

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "three-hospitals"
NODES = {"north": "North Clinic", "south": "St. Mary's", "east": "East Hospital"}


def test_the_malicious_hospital_is_named_and_the_run_can_be_stopped(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "home" / "state"
    shutil.copytree(EXAMPLE, home)
    subprocess.run([sys.executable, "prepare.py", "data"], cwd=home, check=True)
    sources = ["npz:data/north.npz", "npz:data/south.npz", "folder:data/east"]
    words = [word for source in sources for word in ("--data", source)]
    words += [word for name in NODES.values() for word in ("--name", name)]
    attack = ("--malicious", "1", "--attack", "sign-flip", "--set", "attack-strength=3.0")
    with stopped_at_the_end([]) as running:
        running.append(Running("deploy", "local", "3", *words, *attack, state=state, log=tmp_path / "local.log"))
        running[0].wait_for("3 nodes are up")
        submit = ("deploy", "submit", "experiment.toml", "--nodes", "3")
        done = thistle(*submit, "--name", "first", "--set", "rounds=3", state=state)
        assert done.returncode == 0, done.stderr
        assert "strategy.theta = 0.5: of 3 sites, 1 is left out in every round" in done.stderr
        assert "East Hospital was left out in 3 of 3 rounds: its updates made the shared model worse" in done.stdout
        running.append(
            Running(*submit, "--name", "long", "--set", "rounds=500", state=state, log=tmp_path / "long.log")
        )
        running[1].wait_for("round 1:")
        stopped = thistle("deploy", "stop", "long", state=state)
        assert stopped.returncode == 0 and "long is stopped after round" in stopped.stdout, stopped.stderr
        assert running[1].result() == 1
        status = thistle("deploy", "status", state=state)
        assert "first" in status.stdout and "East Hospital" in status.stdout, status.stdout
    first = RunFolder(state / "local" / "runs" / "first")
    assert {line["site"] for line in read_lines(first.verdicts)} == set(NODES.values())
    report = thistle("report", "first", state=state)
    assert report.returncode == 0 and "East Hospital was left out" in (first.path / "report.html").read_text()
    assert json.dumps(read_json(first.summary)["sites"]["East Hospital"]["left_out"]) == "3"
