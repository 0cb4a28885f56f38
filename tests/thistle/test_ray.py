"""The Ray engine with real processes: the same model as inline, and nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.federations import model_sha, rounds, run, tiny
from tests.server.test_hostile import TamperedGrid
from tests.thistle.staged import run_staged
from tests.thistle.test_cli import QUICK, start, thistle
from thistle.experiments.runfolder import RunFolder, read_lines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

ROUNDS = 60
ARGUMENTS = ["run", "digits-clean", *QUICK, f"--set=rounds={ROUNDS}", "--set=evaluate.every=10"]


def strangers(before: set[int]) -> list[str]:
    """Flower's and Ray's processes that were not there before."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            ours = any(
                word in command for word in ("flower-", "flwr-", "ray::", "raylet", "keeper.py", "server.serving")
            )
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
    deadline = time.monotonic() + 240
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
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 143
    assert b"thistle resume" in errors
    assert_clean(before, patience=1)


TAMPERED = '''
"""The real hosts, but client 5 sends something else in every round."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp

from thistle.client.app import ping, train_cohort
from thistle.protocol.cohort import pack_replies, unpack_replies

app = ClientApp()
app.query("ping")(ping)


@app.train("cohort")
def cohort(message, context):
    replies = dict(unpack_replies(train_cohort(message, context).content, message.content["cohort"]["ids"]))
    if 5 in replies:
        replies[5] = TRICKS[message.content["config"]["server-round"] - 1](replies[5])
    return Message(pack_replies(replies.items()), reply_to=message)


def nan(content):
    name, array = next(iter(content["arrays"].items()))
    content["arrays"][name] = Array(np.full(array.shape, np.nan, np.float32))
    return content


def forged(content):
    name, array = next(iter(content["arrays"].items()))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (80000000000,), }".ljust(117) + b"\\n"
    content["arrays"][name] = Array("float32", array.shape, "numpy.ndarray", b"\\x93NUMPY\\x01\\x00v\\x00" + header)
    return content


TRICKS = [nan, forged, lambda content: "<script>" + "\\x1b[31m[bold]" * 100_000]
'''


def test_hostile_replies_through_real_workers(tmp_path: Path) -> None:
    everybody = {"task.clients": 10, "client.per-round": 10, "rounds": 3, "strategy.name": "flwr-fedavg"}
    experiment = tiny(tmp_path, "hostile", **everybody)
    failing = tiny(tmp_path, "failing", **everybody)
    reference = run(failing, TamperedGrid(failing, lambda number, reply: "gone"))
    folder = run_staged(experiment, TAMPERED)
    verdicts = [line for line in read_lines(folder.verdicts) if line["client"] == 5]
    assert [line["verdict"] for line in verdicts] == ["rejected", "rejected", "failed"]
    assert [line["reason"].partition(":")[0] for line in verdicts] == ["not finite", "encoding", "failed"]
    assert all(line["accepted"] == 9 for line in rounds(folder))
    assert model_sha(folder) == model_sha(reference)


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
    process.communicate(timeout=180)
    assert listening and listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert process.returncode == 130
