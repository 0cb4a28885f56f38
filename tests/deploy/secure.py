"""A federation on three hosts of their own, with TLS, node keys and the gateway, for tests that break parts of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.federations import (
    Running,
    hosts,
    model_sha,
    stopped_at_the_end,
    thistle,
    write_experiment,
)
from tests.federations import run, tiny
from thistle.experiments.runfolder import RunFolder, read_lines

NODES = {"one": "0-1", "two": "2-3", "three": "4-5"}
KEYS = (*NODES, "unknown", "late", "hostile", "hostile_buffers", "stingy", "spoilt", "calibrated", "own")
ATTACK = {"attack.kind": "sign-flip", "attack.strength": 3.0, "attack.clients": "4-5"}
"""Node three, as an experiment would say it."""
BAD = ("--role", "malicious", "--attack", "sign-flip", "--set", "attack-strength=3.0")
ODD = str(Path(__file__).with_name("odd"))

Lost = set[tuple[int, int]]
"""Rounds and clients."""


@dataclass
class Secure:
    """Server on host a; nodes one and two on host b, node three, who attacks, on host c."""

    folder: Path
    addresses: dict[str, str]
    running: list[Running]
    nodes: dict[str, Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.a, self.b, self.c = self.addresses
        self.gateway = f"{self.addresses[self.a]}:8443"
        self.pki = self.folder / "pki"
        self.state = self.folder / "state-a" / "server"

    def serve(self) -> None:
        names = [word for name in KEYS for word in ("--node", name)]
        made = self.command("certs", "pki", "--host", self.addresses[self.a], *names)
        assert made.returncode == 0, made.stderr
        serving = ("deploy", "server", "--certs", str(self.pki / "server"), "--listen", self.gateway)
        self.server = self.start(*serving, log="server")
        self.server.wait_for("nodes connect to")
        for name, clients in NODES.items():
            self.admit(name, clients)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """On the server's host, until it ends."""
        return thistle(*arguments, state=self.folder / "state-a", host=self.a)

    def start(self, *arguments: str, log: str, host: str = "", odd: str = "") -> Running:
        host = host or self.a
        more = {"THISTLE_ODD": odd, "PYTHONPATH": ODD} if odd else {}
        started = Running(
            *arguments,
            state=self.folder / f"state-{host[-1]}",
            log=self.folder / f"{log}.log",
            host=host,
            more=more,
        )
        self.running.append(started)
        return started

    def admit(self, name: str, clients: str, *more: str) -> None:
        key = str(self.pki / "server" / "nodes" / f"{name}.pub")
        added = self.command("deploy", "add-node", key, "--clients", clients, *more)
        assert added.returncode == 0, added.stderr

    def join(self, name: str, host: str, *more: str, odd: str = "") -> Running:
        """A node; not yet up."""
        joining = ("deploy", "node", "--server", self.gateway, "--certs", str(self.pki / name), *more)
        self.nodes[name] = self.start(*joining, log=name, host=host, odd=odd)
        return self.nodes[name]

    def submit(self, name: str, nodes: int = 3, **more: Any) -> Running:
        """An experiment, under way."""
        experiment = write_experiment(self.folder / f"{name}.toml", **more)
        arguments = ("deploy", "submit", str(experiment), "--nodes", f"{nodes}", "--name", name)
        return self.start(*arguments, log=f"submit-{name}")

    def run_folder(self, name: str) -> RunFolder:
        return RunFolder(self.state / "runs" / name)

    def sha(self, name: str) -> str:
        return model_sha(self.run_folder(name).path)

    def answered(self, name: str) -> Lost:
        verdicts = read_lines(self.run_folder(name).verdicts)
        return {(line["round"], line["client"]) for line in verdicts if line["verdict"] not in ("failed", "rejected")}

    def lost(self, name: str) -> Lost:
        """Whose work is missing, in which rounds."""
        experiment = self.run_folder(name).load_experiment()
        everybody = range(experiment.task.clients)
        return {(r, c) for r in range(1, experiment.rounds + 1) for c in everybody} - self.answered(name)

    def simulated(self, name: str, but: Lost, **attack: Any) -> str:
        """The model of the same experiment in this process, in which these clients fail in these rounds."""
        from thistle.client import app as client_app
        from thistle.client.work import Work

        flat = self.run_folder(name).load_experiment().flat()
        flat |= {"run.out": str(self.folder / "simulated"), "run.name": name, "runtime.workers": 1, **attack}
        real = client_app.role

        def role(work: Work) -> str:
            if (work.round, work.client) in but:
                raise RuntimeError("lost")
            return real(work)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client_app, "role", role)
            folder = run(tiny(self.folder, **flat))
        return model_sha(folder.path)

    def check_nothing_is_corrupted(self, name: str) -> Lost:
        """The model is what those who answered make of it, bit by bit; returns who did not."""
        lost = self.lost(name)
        assert self.sha(name) == self.simulated(name, lost, **ATTACK)
        numbers = [line["round"] for line in read_lines(self.run_folder(name).metrics)]
        assert numbers == list(range(1, len(numbers) + 1))
        return lost

    def cable(self, host: str, way: str) -> None:
        """Pull it out ("down"), put it in ("up"): at the switch's end."""
        switch, number = f"{host[:-1]}sw", list(self.addresses).index(host) + 1
        subprocess.run(["ip", "-n", switch, "link", "set", f"{host[:-1]}v{number}", way], check=True)


@contextmanager
def secure(folder: Path) -> Iterator[Secure]:
    """All of it up."""
    if not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        pytest.skip("nginx is not installed")
    with hosts("a", "b", "c") as addresses, stopped_at_the_end([]) as running:
        federation = Secure(folder, addresses, running)
        federation.serve()
        federation.join("one", federation.b)
        federation.join("two", federation.b)
        federation.join("three", federation.c, *BAD)
        for name in NODES:
            federation.nodes[name].wait_for(f"the node {name} is up")
        yield federation


@contextmanager
def guest(
    federation: Secure, name: str, clients: str, *more: str, odd: str = "", admit: tuple[str, ...] = ()
) -> Iterator[None]:
    """A further node on host c, for a while."""
    federation.admit(name, clients, *admit)
    node = federation.join(name, federation.c, *more, odd=odd)
    try:
        node.wait_for(f"the node {name} is up")
        yield
    finally:
        federation.nodes.pop(name).stop()
        assert federation.command("deploy", "revoke", name).returncode == 0
