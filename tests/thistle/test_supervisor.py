"""Services that die, hang, wait for each other, or lose who looks after them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from thistle.deploy import service as module
from thistle.deploy.disk import LONG, DiskWatch, LogWatch
from thistle.deploy.service import DIE_WITH_PARENT, Service
from thistle.deploy.supervisor import Supervisor


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.05, 0.1))
    monkeypatch.setattr(module, "PROBE_EVERY", 0.05)


def make(folder: Path, name: str = "one", code: str = "import time; time.sleep(60)", **more: object) -> Service:
    log = folder / f"{name}.log"
    return Service(name, [sys.executable, "-I", "-c", code], os.environ, log, folder, **more)  # type: ignore[arg-type]


@pytest.fixture
def said() -> list[str]:
    return []


def until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        supervisor.look()
        time.sleep(0.01)


def test_what_dies_is_started_again_and_what_is_left_ends(tmp_path: Path, said: list[str]) -> None:
    one = make(tmp_path)
    with Supervisor([one], said.append) as supervisor:
        until(supervisor, lambda: one.process is not None)
        first = one.process.pid  # type: ignore[union-attr]
        os.kill(first, signal.SIGKILL)
        until(supervisor, lambda: one.process is not None and one.process.pid != first)
        second = one.process.pid  # type: ignore[union-attr]
    assert not psutil.pid_exists(second)
    assert said[0].startswith("$ ") and "one ended with -9" in said[1]


def test_the_same_reason_is_told_once(tmp_path: Path, said: list[str]) -> None:
    one = make(tmp_path, code="print('no luck'); raise SystemExit(3)")
    with Supervisor([one], said.append) as supervisor:
        until(supervisor, lambda: one.deaths >= 4)
    assert [line for line in said if "no luck" in line and not line.startswith("$")] == said[1:2]


def test_what_no_longer_answers_is_ended_and_started_again(tmp_path: Path, said: list[str]) -> None:
    answers = [True]
    one = make(tmp_path, probe=lambda: answers[0])
    with Supervisor([one], said.append) as supervisor:
        until(supervisor, lambda: one.ready)
        first = one.process.pid  # type: ignore[union-attr]
        answers[0] = False
        until(supervisor, lambda: one.process is None or one.process.pid != first)
        answers[0] = True
        until(supervisor, lambda: one.ready)
        assert not psutil.pid_exists(first)
    assert "one did not answer" in said[2]


def test_all_is_ready_without_what_is_not_needed(tmp_path: Path, said: list[str]) -> None:
    one, luxury = make(tmp_path), make(tmp_path, "luxury", probe=lambda: False, needed=False)
    with Supervisor([luxury, one], said.append) as supervisor:
        until(supervisor, lambda: supervisor.all_ready)
        assert luxury.process is not None and not luxury.ready


def test_one_waits_until_the_other_is_up(tmp_path: Path, said: list[str]) -> None:
    up = [False]
    first = make(tmp_path, "first", "print('begun', flush=True); import time; time.sleep(60)", probe=lambda: up[0])
    first.sign = "begun"
    second = make(tmp_path, "second", after=first)
    with Supervisor([first, second], said.append) as supervisor:
        until(supervisor, lambda: first.process is not None)
        for _ in range(20):
            supervisor.look()
        assert second.process is None
        up[0] = True
        until(supervisor, lambda: second.process is not None)


def test_nothing_outlives_the_one_who_started_it(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-I", "-c", "import time; time.sleep(60)"]
    parent = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            "import os, subprocess, sys, time\n"
            f"command = [sys.executable, '-I', {str(DIE_WITH_PARENT)!r}, str(os.getpid()), *{sleeper!r}]\n"
            "child = subprocess.Popen(command)\n"
            "print(child.pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while "-c" not in child.cmdline() or "die_with_parent" in " ".join(child.cmdline()):
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    psutil.wait_procs([child], timeout=90)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_service_is_held_while_the_disk_is_full(tmp_path: Path, said: list[str]) -> None:
    one = make(tmp_path)
    watch = DiskWatch(tmp_path, 2**62, one, said.append)
    watch()
    assert one.on_hold and "is closed" in said[-1]
    assert one.look() == [] and one.process is None
    watch.least, watch._looked = 0, 0.0
    watch()
    assert not one.on_hold and "open again" in said[-1]


def test_a_log_that_is_too_long_is_emptied_under_its_writer(tmp_path: Path, said: list[str]) -> None:
    long, short = tmp_path / "long", tmp_path / "short"
    short.write_text("kept\n")
    with long.open("ab") as writer:
        writer.truncate(LONG + 1)
        LogWatch([long, short, tmp_path / "absent"], said.append)()
        writer.write(b"next\n")
    assert long.read_text() == "next\n" and short.read_text() == "kept\n"
    assert len(said) == 1 and "long: emptied" in said[0]
