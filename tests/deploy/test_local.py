"""Everything on this machine as separate processes: the newcomer's federation."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.federations import Running, model_sha, stopped_at_the_end, thistle, write_experiment
from tests.test_golden import DEPLOYED, on_record
from thistle.experiments.runfolder import read_json

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]


ARGUMENTS = ("deploy", "local", "2", "--clients", "6", "--malicious", "1", "--attack", "sign-flip")


@contextmanager
def local_federation(folder: Path) -> Iterator[Running]:
    with stopped_at_the_end([]) as running:
        more = ("--set", "attack-strength=3.0")
        running.append(Running(*ARGUMENTS, *more, state=folder / "state", log=folder / "local.log"))
        running[0].wait_for("2 nodes are up")
        yield running[0]


@pytest.mark.smoke
def test_a_local_federation_gives_the_model_of_the_inline_run(tmp_path: Path) -> None:
    state, experiment = tmp_path / "state", write_experiment(tmp_path / "digits.toml", rounds=2)
    assert "no server runs" in thistle("deploy", "submit", str(experiment), state=state).stderr
    with local_federation(tmp_path):
        done = thistle(
            "deploy", "submit", str(experiment), "--name", "one", "--nodes", "2", "--keep-replies", state=state
        )
        assert done.returncode == 0, done.stderr
        folder = state / "local" / "runs" / "one"
        assert f"run folder: {folder}" in done.stdout.replace("\n", "")
        assert "round 2" in done.stderr and "$ FLWR_HOME=" in done.stderr

        attack = ("--set=attack.kind=sign-flip", "--set=attack.strength=3.0", "--set=attack.clients=3-5")
        here = ("--engine", "inline", "--out", "here", "--name", "one")
        inline = thistle("run", str(experiment), *here, *attack, state=state)
        assert inline.returncode == 0, inline.stderr
        assert model_sha(folder) == model_sha(tmp_path / "here" / "one")
        assert on_record(DEPLOYED) in (None, model_sha(folder))
        assert read_json(folder / "truth.json")["malicious"] is None
        audited = thistle("audit", "verify", str(state / "local"), state=state)
        assert audited.returncode == 0 and "one: 2 rounds, each model computed again" in audited.stdout, audited.stderr
        again = thistle("deploy", "submit", str(experiment), "--name", "one", state=state)
        assert again.returncode == 2 and "exists" in again.stderr

        mean = ("--name", "mean", "--nodes", "2", "--set", "strategy.name=fedavg")
        done = thistle("deploy", "submit", str(experiment), *mean, state=state)
        assert done.returncode == 0 and "client.clip = 1.5" in done.stderr, done.stderr
        folder = state / "local" / "runs" / "mean"
        assert read_json(folder / "summary.json")["clipped"] > 0, "three clients flip and triple what they send"
        here = ("--engine", "inline", "--out", "here", "--name", "mean")
        repeated = thistle("run", str(folder / "experiment.toml"), *here, *attack, state=state)
        assert repeated.returncode == 0, repeated.stderr
        assert model_sha(folder) == model_sha(tmp_path / "here" / "mean")


def test_a_local_federation_survives_its_processes_and_is_cleaned(tmp_path: Path) -> None:
    state, experiment = tmp_path / "state", write_experiment(tmp_path / "digits.toml", rounds=1)
    with local_federation(tmp_path) as local:
        local.part("flower-superexec").send_signal(signal.SIGKILL)
        local.wait_for("superexec ended with -9")
        local.part("flower-supernode").send_signal(signal.SIGSTOP)  # lives, and no longer answers
        local.wait_for("node-1 did not answer and was stopped")
        local.wait_for("node-1 is up", times=2)
        done = thistle("deploy", "submit", str(experiment), "--name", "one", "--nodes", "2", state=state)
        assert done.returncode == 0, done.stderr
        status = thistle("deploy", "status", state=state)
        assert status.returncode == 0, status.stdout
        assert "finished:completed" in status.stdout and "no answer" not in status.stdout
        in_use = thistle("deploy", "clean", state=state)
        assert in_use.returncode == 0 and "in use" in in_use.stderr
    cleaned = thistle("deploy", "clean", state=state)
    assert cleaned.returncode == 0 and "state.db" in cleaned.stdout, cleaned.stderr
    assert not (state / "local" / "flwr" / "apps").exists() and (state / "local" / "runs" / "one").is_dir()


def test_what_it_prints_can_be_typed_as_it_stands(tmp_path: Path) -> None:
    """The offered submit, and after Ctrl-C the line that stops the run, which then says that it was stopped."""
    state = tmp_path / "state"
    with stopped_at_the_end([]) as running:
        running.append(Running("deploy", "local", "3", "--clients", "9", state=state, log=tmp_path / "local.log"))
        running[0].wait_for("3 nodes are up")
        offered = re.search(r"thistle (deploy submit .*?)  \(", (tmp_path / "local.log").read_text())
        assert offered
        words = [*offered[1].replace("rounds=10", "rounds=1000").split(), "--name", "long"]
        running.append(Running(*words, state=state, log=tmp_path / "submit.log"))
        running[1].wait_for("round 5")
        running[1].process.send_signal(signal.SIGINT)
        assert running[1].process.wait(60) == 130
        line = (tmp_path / "submit.log").read_text().splitlines()[-1]
        program, *words = line.split()
        stopped = thistle(*words, state=state)
        assert program == "thistle" and stopped.returncode == 0, stopped.stderr
        deadline = time.monotonic() + 60
        while (said := read_json(state / "local" / "runs" / "long" / "status.json"))["status"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert said["status"] == "stopped"
