"""Real Ray workers that are killed, end themselves, hang or are many: a round loses nobody but the guilty."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.federations import model_sha, rounds, run, tiny
from tests.thistle.staged import run_staged
from thistle.engines.keeper import MARK
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

EVERYBODY = {"task.clients": 10, "client.per-round": 10, "evaluate.every": 100}

FAULTY = '''
"""The real app, but some clients do something else."""

import ctypes, os, sys, time

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from thistle.client import app as real
from thistle.client import honest

FAULTS = {}


class Garbage:
    def records(self):
        return RecordDict({"arrays": MetricRecord({"x": 1}), "y": ConfigRecord({"z": b"0" * 100})})


def fault(work):
    what = FAULTS.get(work.round, {}).get(work.client)
    if what == "raise":
        raise ValueError("disk on fire")
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        sys.exit(3)
    if what == "hang":
        time.sleep(1000)
    if what == "native hang":
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):  # the second waits for the first, holding the interpreter's lock, and no signal ends that
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    if what == "nothing":
        return None
    if what == "garbage":
        return Garbage()
    if what == "slow":
        time.sleep(1.5)
    return honest.train(work)


app = ClientApp()
app.query("ping")(real.ping)


@app.train("cohort")
def cohort(message, context):
    real.KINDS["honest"] = fault
    return real.train_cohort(message, context)
'''


def run_faulty(
    experiment: Experiment, faults: dict[int, dict[int, str]], trouble: Callable[[RunFolder, str], None] | None = None
) -> RunFolder:
    """Run it on Ray with these faults, and with somebody who makes trouble from outside."""
    return run_staged(experiment, FAULTY.replace("FAULTS = {}", f"FAULTS = {faults}"), trouble)


def workers(session: str) -> list[psutil.Process]:
    """This session's Ray workers that have work, or have had some."""
    found = []
    for process in psutil.process_iter():
        try:
            if "ray::ClientAppActor" in " ".join(process.cmdline()) and process.environ().get(MARK) == session:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def verdicts(folder: RunFolder, number: int) -> dict[int, str]:
    lines = [line for line in read_lines(folder.verdicts) if line["round"] == number]
    return {line["client"]: line["reason"] or line["verdict"] for line in lines}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The model after this many rounds in which nothing happens."""
    out = tmp_path_factory.mktemp("whole")
    return {n: model_sha(run(tiny(out, f"r{n}", rounds=n, **EVERYBODY))) for n in (2, 7)}


def test_a_guilty_client_fails_alone(tmp_path: Path) -> None:
    faults = {
        1: {1: "raise", 2: "nothing", 3: "garbage", 4: "sys.exit", 5: "hang"},
        2: {6: "exit"},
        3: {6: "exit", 7: "raise"},
        4: {},
    }
    experiment = tiny(tmp_path, "faulty", **{**EVERYBODY, "client.limit": 8.0})
    folder = run_faulty(experiment, faults)
    first = verdicts(folder, 1)
    assert first[1] == "failed: ValueError: disk on fire"
    assert first[2].startswith("failed: ") and first[4] == "failed: SystemExit: 3"
    assert first[3].startswith("records: ")
    assert first[5].startswith("failed: CutOff: cut off after 8 s (client.limit")
    assert {first[client] for client in (0, 6, 7, 8, 9)} == {"accepted"}
    for number in (2, 3):
        assert verdicts(folder, number)[6].startswith("failed: its process died under it")
    assert {reason for client, reason in verdicts(folder, 2).items() if client != 6} == {"accepted"}
    assert {reason for client, reason in verdicts(folder, 3).items() if client not in (6, 7)} == {"accepted"}
    assert set(verdicts(folder, 4).values()) == {"accepted"}
    lines = rounds(folder)
    assert lines[1]["retried"] >= 5 and lines[0]["retried"] == lines[3]["retried"] == 0
    assert lines[2]["retried"] == 0, "a client that is known to end its process runs alone"
    assert "died with clients" in folder.log.read_text()


def test_a_hang_in_native_code_is_ended_with_its_process(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, "stuck", rounds=2, **{**EVERYBODY, "client.limit": 6.0})
    folder = run_faulty(experiment, {1: {5: "native hang"}})
    assert verdicts(folder, 1)[5].startswith("failed: its process died under it")
    assert {reason for client, reason in verdicts(folder, 1).items() if client != 5} == {"accepted"}
    assert set(verdicts(folder, 2).values()) == {"accepted"}


def test_five_killed_workers_in_a_row_cost_nobody_a_result(tmp_path: Path, whole: dict[int, str]) -> None:
    killed: list[int] = []

    def kill(folder: RunFolder, session: str) -> None:
        for number in range(1, 6):
            while len(list(read_lines(folder.metrics))) < number or not workers(session):
                time.sleep(0.05)
            time.sleep(0.7)  # in the middle of the next round, in which client 0 is slow
            victim = max(workers(session), key=lambda process: process.pid)
            os.kill(victim.pid, signal.SIGKILL if number % 2 else signal.SIGTERM)
            killed.append(victim.pid)

    slow = {number: dict.fromkeys(range(0, 10, 5), "slow") for number in range(2, 7)}
    experiment = tiny(tmp_path, "killed", rounds=7, **EVERYBODY)
    folder = run_faulty(experiment, slow, kill)
    assert len(set(killed)) == 5
    assert all(line["accepted"] == 10 for line in rounds(folder))
    assert sum(line["retried"] for line in rounds(folder)) >= 3
    assert rounds(folder)[6]["retried"] == 0
    assert model_sha(folder) == whole[7]


def test_more_workers_than_flower_serves(tmp_path: Path, whole: dict[int, str]) -> None:
    count = (os.cpu_count() or 1) + 6
    seen: set[int] = set()

    def look(folder: RunFolder, session: str) -> None:
        while not folder.summary.is_file():
            seen.update(process.pid for process in workers(session))
            time.sleep(0.1)

    experiment = tiny(tmp_path, "many", rounds=2, **{**EVERYBODY, "runtime.workers": count})
    folder = run_faulty(experiment, {}, look)
    assert len(seen) == count
    hosts: list[Any] = read_json(folder.environment)["hosts"]
    assert len(hosts) == count
    assert model_sha(folder) == whole[2]
