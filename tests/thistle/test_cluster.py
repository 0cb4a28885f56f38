"""A Ray cluster of two nodes, started by hand: a run uses both and gives the same model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.federations import model_sha
from tests.thistle.test_cli import QUICK, thistle
from thistle.experiments.runfolder import RunFolder, read_json

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
ENVIRONMENT = {
    **os.environ,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def inside() -> Iterator[list[str]]:
    """A network of its own, in which there is nothing but loopback: what to write before a command to run it there."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are refused here")
    keeper = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    enter = ["nsenter", f"--target={keeper.pid}", "--net"]
    try:
        _wait_until(lambda: Path(f"/proc/{keeper.pid}/comm").read_text() == "sleep\n")
        subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=True)
        yield enter
    finally:
        keeper.kill()
        keeper.wait()


@pytest.fixture
def cluster(inside: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ray start --head` and `ray start --address`, one processor each."""
    address = f"127.0.0.1:{PORT}"
    short = tmp_path_factory.mktemp("r")  # the path of a Unix socket may have 107 characters
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for which in (["--head", f"--port={PORT}", "--include-dashboard=false"], [f"--address={address}"]):
            command = [*inside, RAY, "start", *which, "--block", "--num-cpus=1"]
            with (short / f"{len(nodes)}.log").open("wb") as log:
                environment = {**ENVIRONMENT, "RAY_TMPDIR": str(short)}
                nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            _wait_until(lambda: nodes[-1].poll() is None and _processors(inside, address) == len(nodes))
        yield address
    finally:
        for node in reversed(nodes):
            _end(node)


def _processors(inside: list[str], address: str) -> int:
    command = [*inside, RAY, "status", f"--address={address}"]
    shown = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False).stdout
    found = re.search(r"/(\d+)\.0 CPU", shown)
    return int(found[1]) if found else 0


def _there(inside: list[str]) -> Iterator[str]:
    """The commands of all processes in that network."""
    keeper = inside[1].partition("=")[2]
    network = os.readlink(f"/proc/{keeper}/ns/net")
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/ns/net") == network:
                yield " ".join(process.cmdline())
        except (psutil.Error, OSError):
            continue


def _wait_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 400
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A node with all that it has started."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    _, alive = psutil.wait_procs(family, timeout=90)
    for member in alive:
        member.kill()
    process.wait(timeout=90)


def test_a_run_uses_the_workers_of_both_nodes(tmp_path: Path, inside: list[str], cluster: str) -> None:
    run = [sys.executable, "-m", "thistle", "run", "digits-clean", *QUICK, "--set=rounds=3", f"--out={tmp_path}"]
    on_both = [*inside, *run, f"--set=runtime.ray-address={cluster}", "--workers=2", "--name=cluster"]
    for command in (on_both, [*run, "--engine=inline", "--name=inline"]):
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    folder = RunFolder(tmp_path / "cluster")
    assert len({host["ray-node"] for host in read_json(folder.environment)["hosts"]}) == 2
    assert model_sha(folder) == model_sha(RunFolder(tmp_path / "inline"))
    _wait_until(lambda: not any("flower" in name or "ClientAppActor" in name for name in _there(inside)))


@pytest.mark.parametrize(
    ("address", "reason"),
    [("nowhere", "should be HOST:PORT"), ("127.0.0.1:1", "no answer there"), ("127.0.0.1:x", "HOST:PORT")],
)
def test_an_address_without_a_cluster_is_refused_in_one_line(tmp_path: Path, address: str, reason: str) -> None:
    done = thistle("run", "digits-clean", f"--set=runtime.ray-address={address}", cwd=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1
