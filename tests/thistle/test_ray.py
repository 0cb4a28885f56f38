"""The Ray engine with real processes: the same model as inline, and nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from exchange.runfolder import RunFolder
from tests.federations import model_sha, rounds
from tests.thistle.test_cli import QUICK, start, thistle

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

ROUNDS = 60
ARGUMENTS = ["run", "digits-clean", *QUICK, f"--set=rounds={ROUNDS}", "--set=evaluate.every=10"]


def strangers(before: set[int]) -> list[str]:
    """Flower's and Ray's processes that were not there before."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            ours = any(word in command for word in ("flower-", "flwr-", "ray::", "raylet", "keeper.py"))
        except (psutil.Error, OSError):
            continue
        if ours and process.pid not in before | {os.getpid()} and process.status() != psutil.STATUS_ZOMBIE:
            found.append(f"{process.pid} {command[:100]}")
    return found


def assert_clean(before: set[int], patience: float) -> None:
    deadline = time.monotonic() + patience
    while strangers(before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not strangers(before)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model of an inline run."""
    folder = tmp_path_factory.mktemp("inline")
    done = thistle(*ARGUMENTS, "--engine", "inline", cwd=folder)
    assert done.returncode == 0, done.stderr
    return model_sha(RunFolder(folder / "runs" / "digits-clean"))


def wait_for_round(folder: RunFolder, number: int) -> None:
    deadline = time.monotonic() + 120
    while len(rounds(folder)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_command_is_cleaned_up_after_and_its_run_resumed(tmp_path: Path, reference: str) -> None:
    before = set(psutil.pids())
    folder = RunFolder(tmp_path / "runs" / "digits-clean")
    process = start(*ARGUMENTS, cwd=tmp_path)
    wait_for_round(folder, 5)
    process.kill()
    process.wait()
    assert_clean(before, patience=20)
    assert 5 <= len(rounds(folder)) < ROUNDS
    done = thistle("resume", str(folder.path), "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model_sha(folder) == reference
    assert [line["round"] for line in rounds(folder)] == list(range(1, ROUNDS + 1))
    assert_clean(before, patience=5)


def test_a_run_of_which_everything_was_killed_is_resumed(tmp_path: Path, reference: str) -> None:
    before = set(psutil.pids())
    folder = RunFolder(tmp_path / "runs" / "digits-clean")
    process = start(*ARGUMENTS, cwd=tmp_path)
    wait_for_round(folder, 5)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(family) > 8
    for victim in family:
        victim.kill()
    process.wait()
    assert_clean(before, patience=5)
    done = thistle("resume", "digits-clean", "--engine", "inline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model_sha(folder) == reference
    assert [line["round"] for line in rounds(folder)] == list(range(1, ROUNDS + 1))


def test_sigterm_stops_and_cleans_up(tmp_path: Path) -> None:
    before = set(psutil.pids())
    process = start(*ARGUMENTS, cwd=tmp_path)
    wait_for_round(RunFolder(tmp_path / "runs" / "digits-clean"), 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert b"thistle resume" in errors
    assert_clean(before, patience=1)


def test_ports_are_opened_on_loopback_only(tmp_path: Path) -> None:
    process = start(*ARGUMENTS, cwd=tmp_path)
    wait_for_round(RunFolder(tmp_path / "runs" / "digits-clean"), 1)
    listening = {
        connection.laddr.ip
        for member in psutil.Process(process.pid).children(recursive=True)
        for connection in member.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert listening and listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert process.returncode == 130
