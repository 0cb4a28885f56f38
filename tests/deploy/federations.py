"""Federations of real processes for tests: commands that run until they are told to stop, and hosts of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import pytest
import tomli_w

from thistle.experiments.runfolder import RunFolder, nest, read_json

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = count(1)
"""Numbers for the networks of this process: several may be up at once."""
PATIENCE = 600.0
"""Seconds within which anything must happen, on a busy machine."""
EXPERIMENT = {
    "rounds": 2,
    "task.clients": 6,
    "client.per-round": 6,
    "client.epochs": 1,
    "client.batch-size": 25,
    "model.name": "mlp",
    "strategy.name": "rofsl",
    "evaluate.every": 1,
}


def environment(state: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "THISTLE_STATE": str(state), "COLUMNS": "300"}


def command(*arguments: str, host: str = "") -> list[str]:
    """A thistle command, on a host of its own where one is named."""
    inside = ["ip", "netns", "exec", host] if host else []
    return [*inside, sys.executable, "-m", "thistle", *arguments]


def thistle(*arguments: str, state: Path, host: str = "") -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        command(*arguments, host=host),
        env=environment(state),
        cwd=state.parent,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


class Running:
    """A command that runs until the test is over."""

    def __init__(
        self, *arguments: str, state: Path, log: Path, host: str = "", more: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        around = environment(state)
        if more:  # a path of its own comes first
            around |= {**more, "PYTHONPATH": os.pathsep.join([more["PYTHONPATH"], around["PYTHONPATH"]])}
        heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # even where the tests were told not to
        try:
            with log.open("wb") as file:
                self.process = subprocess.Popen(
                    command(*arguments, host=host),
                    env=around,
                    cwd=state.parent,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        finally:
            signal.signal(signal.SIGINT, heard)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it has said this so often."""
        deadline = time.monotonic() + PATIENCE
        while self.said().count(text) < times:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def part(self, program: str) -> psutil.Process:
        """The process below it that runs this program of Flower's; waits for it to come."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any(Path(word).name == program for word in child.cmdline()[:4]):
                        return child
            time.sleep(0.1)
        raise AssertionError(f"no {program} below {self.process.pid}")

    def result(self) -> int:
        """Its exit code, when it has come to its end by itself."""
        return self.process.wait(timeout=2 * PATIENCE)

    def stop(self) -> None:
        """As an administrator would; returns when it and everything below it is gone."""
        below = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        _, alive = psutil.wait_procs(below, timeout=30)
        for process in alive:
            process.kill()
        assert not alive, alive


@contextmanager
def stopped_at_the_end(running: list[Running]) -> Iterator[list[Running]]:
    """Whatever the test started, last first."""
    try:
        yield running
    finally:
        for one in reversed(running):
            one.stop()


def write_experiment(path: Path, **more: object) -> Path:
    path.write_text(tomli_w.dumps(nest({**EXPERIMENT, **more})), encoding="utf-8")
    return path


def model_sha(folder: Path) -> str:
    return str(read_json(RunFolder(folder).summary)["model_sha256"])


@contextmanager
def hosts(*names: str) -> Iterator[dict[str, str]]:
    """Network namespaces as hosts on one switch: name → address. The machine's own network is not touched."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    tag = f"th{os.getpid() % 100000}n{next(NETWORKS)}"
    made: list[str] = []

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        try:
            ip("netns", "add", f"{tag}sw")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        made.append(f"{tag}sw")
        ip("-n", f"{tag}sw", "link", "add", "br0", "type", "bridge")
        ip("-n", f"{tag}sw", "link", "set", "br0", "up")
        addresses = {}
        for number, name in enumerate(names, 1):
            space, cable = f"{tag}{name}", f"{tag}v{number}"
            ip("netns", "add", space)
            made.append(space)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", cable, "netns", f"{tag}sw")
            ip("-n", f"{tag}sw", "link", "set", cable, "master", "br0", "up")
            ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            addresses[space] = f"10.77.0.{number}"
        yield addresses
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
