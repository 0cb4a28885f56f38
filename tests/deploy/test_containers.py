"""The image and docker/compose.yaml, really built and run; by docker compose, or by podman-compose where that is there.

One federation for all of it, because its image takes minutes: it trains, gives the model of the simulation, loses a
node during a run and gets it back, comes up again on its old volumes, and leaves nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.deploy.federations import ROOT

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(10000)]

PATIENCE = 3000.0
NODES = ("one", "two", "three", "four")
KILL = """
import os, psutil, signal
(command,) = (one for one in psutil.process_iter() if one.ppid() == 1 and "deploy" in one.cmdline())
os.kill(command.pid, signal.SIGKILL)
"""


class Federation:
    """compose.yaml under a project name of its own."""

    def __init__(self, engine: str, compose: list[str]) -> None:
        self.engine, self.project = engine, f"thistle-test-{os.getpid()}"
        self.file = [*compose, "-p", self.project, "-f", str(ROOT / "docker" / "compose.yaml")]
        # Of these terms a simulation can be told, too: who trains adversarially, and nothing of the others.
        self.environment = {**os.environ, "OBJECTIVE": "pgd", "CALIBRATION": "none", "ROUNDS": "3"}

    def call(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def compose(self, *arguments: str) -> str:
        return self.call(*self.file, *arguments)

    def containers(self, service: str = "") -> list[str]:
        wanted = ["--filter", f"label=com.docker.compose.project={self.project}"]
        wanted += ["--filter", f"label=com.docker.compose.service={service}"] if service else []
        return self.call(self.engine, "ps", "-a", "-q", *wanted).split()

    def about(self, service: str) -> dict:
        (container,) = self.containers(service)
        return json.loads(self.call(self.engine, "inspect", container))[0]

    def logs(self, service: str) -> str:
        (container,) = self.containers(service)
        done = subprocess.run([self.engine, "logs", container], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def inside(self, service: str, *command: str, check: bool = True) -> str:
        (container,) = self.containers(service)
        return self.call(self.engine, "exec", container, *command, check=check)

    def is_healthy(self, service: str) -> bool:
        """By compose.yaml's own probe: not everywhere does somebody ask it regularly."""
        with suppress(AssertionError):
            return "no answer" not in self.inside(service, "python", "-m", "thistle.deploy.probe", "/state")
        return False

    def finished(self) -> str:
        """Wait for the submitted run; returns its folder's name."""
        until(lambda: self.containers("submit") and self.about("submit")["State"]["Status"] == "exited")
        assert self.about("submit")["State"]["ExitCode"] == 0, self.logs("submit")
        return re.findall(r"run folder: /state/server/runs/(\S+)", self.logs("submit"))[-1]

    def read(self, path: str) -> str:
        return self.inside("server", "cat", f"/state/server/runs/{path}")

    def model_sha(self, run: str) -> str:
        return str(json.loads(self.read(f"{run}/summary.json"))["model_sha256"])

    def rounds(self) -> int:
        """That the newest run has finished."""
        count = "cat $(ls -td /state/server/runs/*/ | head -n1)metrics.jsonl"
        return len(self.inside("server", "sh", "-c", count, check=False).splitlines())

    def left(self) -> list[str]:
        """Everything that still has the project's name."""
        volumes = self.call(self.engine, "volume", "ls", "--format", "{{.Name}}").split()
        networks = self.call(self.engine, "network", "ls", "--format", "{{.Name}}").split()
        return self.containers() + [name for name in volumes + networks if name.startswith(self.project)]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(2)


@pytest.fixture
def federation() -> Iterator[Federation]:
    for engine, compose in (("docker", ["docker", "compose"]), ("podman", ["podman-compose"])):
        if (
            shutil.which(engine)
            and shutil.which(compose[0])
            and works([engine, "info"])
            and works([*compose, "version"])
        ):
            found = Federation(engine, compose)
            break
    else:
        pytest.skip("neither docker compose nor podman-compose works here")
    try:
        yield found
    finally:
        found.compose("down", "-v")


def works(command: list[str]) -> bool:
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_federation_of_containers(federation: Federation) -> None:
    federation.compose("build")
    federation.compose("up", "-d")
    first = federation.finished()
    assert all(federation.is_healthy(service) for service in ("server", *NODES))
    check_what_containers_see(federation)
    assert federation.model_sha(first) == simulated_sha(federation)

    federation.compose("down")
    federation.environment["ROUNDS"] = "8"
    federation.compose("up", "-d")
    until(lambda: federation.containers("submit") and federation.rounds() >= 2)
    federation.inside("two", "python", "-c", KILL, check=False)  # the container ends with it
    second = federation.finished()
    assert second != first
    verdicts = [json.loads(line) for line in federation.read(f"{second}/verdicts.jsonl").splitlines()]
    heard = {(line["round"], line["client"]) for line in verdicts if line["verdict"] != "failed"}
    others = {(number, client) for number in range(1, 9) for client in (0, 1, 4, 5, 6, 7)}
    missed = {(number, client) for number in range(1, 9) for client in (2, 3)} - heard  # it failed, or was not asked
    assert missed and others <= heard
    until(lambda: federation.is_healthy("two"))

    federation.compose("down", "-v")
    assert not federation.left()


def check_what_containers_see(federation: Federation) -> None:
    """Every node its own key; nobody root; nothing of keys in the image."""
    for node in NODES:
        seen = federation.inside(node, "find", "/keys", "/authority", "/opt/thistle/steps", "-type", "f")
        keys = [path for path in seen.split() if not path.startswith("/opt")]
        assert sorted(keys) == [f"/keys/{node}/ca.crt", f"/keys/{node}/node.key"]
        assert federation.inside(node, "id", "-u").strip() == "10001"
    image = federation.about("one")["Image"]
    inside = federation.call(
        federation.engine, "run", "--rm", "--entrypoint", "find", image, "/keys", "/state", "-type", "f"
    )
    assert not inside.split()


def simulated_sha(federation: Federation) -> str:
    """Of the same experiment in one process, where the experiment names attackers and adversarial clients."""
    attack = ("--set=attack.kind=sign-flip", "--set=attack.clients=4-5")
    calibrated = ("--set=client.objective=pgd", "--set=client.adversarial-clients=6-7")
    where = ("--engine", "inline", "--out", "/state/simulated", "--name", "same", "--set=rounds=3")
    federation.inside("server", "thistle", "run", "/opt/thistle/steps/demo.toml", *where, *attack, *calibrated)
    return str(json.loads(federation.inside("server", "cat", "/state/simulated/same/summary.json"))["model_sha256"])
