"""A node that announces its reply and never uploads it costs the round its own reply, and not a second more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exchange.runfolder import read_lines
from tests.deploy.federations import Running, environment, stopped_at_the_end, thistle, write_experiment
from thistle.deploy.state import State
from thistle.flower import flower_environment, free_port

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
DEADLINE = 60.0
SESSION = 180.0
"""Seconds for which Flower's own grid would wait for the upload."""


def test_a_stingy_node(tmp_path: Path) -> None:
    state = tmp_path / "state"
    experiment = write_experiment(tmp_path / "digits.toml", **{"rounds": 1, "client.timeout": DEADLINE})
    with stopped_at_the_end([]) as running:
        running.append(Running("deploy", "local", "1", "--clients", "3", state=state, log=tmp_path / "local.log"))
        running[0].wait_for("1 nodes are up")
        server = f"127.0.0.1:{State(state / 'local').told()['port']}"
        home = tmp_path / "stingy"
        home.mkdir()
        script = str(Path(__file__).with_name("stingy_supernode.py"))
        where = ["--insecure", "--superlink", server, "--port", f"{free_port()}"]
        config = ["--node-config", 'role="honest" clients="3-5"']
        with (tmp_path / "stingy.log").open("wb") as log:
            node = subprocess.Popen(
                [sys.executable, script, *where, *config],
                env={**environment(state), **flower_environment(home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
                stdout=log,
                stderr=log,
            )
        try:
            done = thistle("deploy", "submit", str(experiment), "--name", "one", "--nodes", "2", state=state)
        finally:
            node.terminate()
            node.wait(timeout=60)
        assert done.returncode == 0, done.stderr
    folder = state / "local" / "runs" / "one"
    verdicts = {line["client"]: line for line in read_lines(folder / "verdicts.jsonl")}
    assert [verdicts[client]["reason"] for client in (3, 4, 5)] == ["timeout"] * 3
    assert all(verdicts[client]["verdict"] != "failed" for client in (0, 1, 2))
    (round_,) = read_lines(folder / "metrics.jsonl")
    assert DEADLINE <= round_["seconds_clients"] < SESSION
