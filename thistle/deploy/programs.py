"""Flower's commands for each part of a federation, as services. Every flag of Flower's that we use is here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from thistle.deploy.health import grpc_serving
from thistle.deploy.service import Service
from thistle.deploy.state import State
from thistle.engines.flower_programs import flower_environment, free_port, tool
from thistle.experiments.chain import PLACE
from thistle.flower_compat.supernode_log import ADMITTED, explain
from thistle.flower_compat.warm import FORK_SERVER, WARM, is_warm, possible

LOOPBACK = "127.0.0.1"
PATIENT = (sys.executable, "-m", "thistle.deploy.patient")
PROMPT = (sys.executable, "-m", "thistle.deploy.prompt")
AGAIN = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01"}
"""Seconds until a node's superexec asks for work again: its SuperNode answers when there is some, or after 2 s."""


@dataclass(frozen=True)
class ServerFiles:
    """What `thistle certs` made for the server."""

    ca: Path
    certificate: Path
    key: Path


def superlink(state: State, port: int, files: ServerFiles | None) -> Service:
    """On loopback; with TLS and node authentication where there are certificates."""
    health = f"{LOOPBACK}:{free_port()}"
    secure = ["--insecure"]
    if files is not None:
        secure = ["--ssl-ca-certfile", str(files.ca), "--ssl-certfile", str(files.certificate)]
        secure += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth"]
    where = ["--host", LOOPBACK, "--port", f"{port}", "--health-server-address", health]
    kept = ["--database", str(state.database), "--disable-runtime-dependency-installation"]
    apart = ["--isolation", "process", "--superexec-auth-secret-file", str(state.secret())]
    command = [*PATIENT, "flower-superlink", *secure, *where, *kept, *apart]
    return _service("superlink", state, command, health)


def server_superexec(state: State, port: int, files: ServerFiles | None, link: Service) -> Service:
    """What starts ServerApps; these learn from it which clients belong to which node."""
    from thistle.server.transport.hosts import BINDINGS

    bound = {PLACE: str(state.path), **({BINDINGS: str(state.bindings)} if files is not None else {})}
    bound["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "1"  # asking locks the SuperLink's database, and runs start rarely
    service = _superexec("superexec", state, port, None if files is None else files.ca, link, bound)
    service.command[:1] = [*PATIENT, "flower-superexec"]
    return service


def fork_servers(name: str, state: State, cold: bool, say: Callable[[str], None]) -> list[Service]:
    """The server that ClientApps are forked from, for all nodes that use it, if any. Without it they start cold."""
    if not cold and not possible():
        say("every message will start its own Python process, which takes seconds: warm clients need Linux")
    if cold or not possible():
        return []
    socket = str(state.home / "warm.sock")
    service = _service(name, state, [sys.executable, "-P", str(FORK_SERVER), socket], "", {WARM: socket})
    service.probe, service.needed = partial(is_warm, socket), False
    return [service]


def supernode(
    name: str,
    state: State,
    server: str,
    config: str,
    ca: Path | None = None,
    key: Path | None = None,
    forks: Sequence[Service] = (),
) -> list[Service]:
    """A node and what starts its ClientApps."""
    health, port = f"{LOOPBACK}:{free_port()}", free_port()
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    known = [] if key is None else ["--auth-supernode-private-key", str(key)]
    where = ["--superlink", server, "--host", LOOPBACK, "--port", f"{port}", "--health-server-address", health]
    apart = ["--isolation", "process", "--superexec-auth-secret-file", str(state.secret())]
    command = [*PROMPT, "flower-supernode", *secure, *known, *where, *apart, "--node-config", config]
    node = _service(name, state, command, health)
    node.sign, node.explain = ADMITTED, explain
    more = {**AGAIN, WARM: forks[0].environment[WARM]} if forks else AGAIN
    return [node, _superexec(f"{name}-superexec", state, port, None, node, more)]


def _superexec(name: str, state: State, port: int, ca: Path | None, after: Service, more: dict[str, str]) -> Service:
    health = f"{LOOPBACK}:{free_port()}"
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    where = ["--runtime-api-address", f"{LOOPBACK}:{port}", "--health-server-address", health]
    shown = ["--superexec-auth-secret-file", str(state.secret())]
    service = _service(name, state, [tool("flower-superexec"), *secure, *where, *shown], health, more)
    service.after = after
    return service


def _service(name: str, state: State, command: list[str], health: str, more: dict[str, str] | None = None) -> Service:
    return Service(
        name=name,
        command=command,
        environment={**flower_environment(state.home), **(more or {})},
        log=state.logs / f"{name}.log",
        folder=state.path,
        probe=partial(grpc_serving, health),
        health=health,
    )
