"""Flower's commands for each part of a federation, as services. Every flag of Flower's that we use is here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from thistle.deploy.health import grpc_serving
from thistle.deploy.service import Service
from thistle.deploy.state import State
from thistle.engines.flower_programs import flower_environment, free_port, tool
from thistle.experiments.chain import PLACE
from thistle.flower_compat.supernode_log import ADMITTED, explain
from thistle.server.transport.hosts import BINDINGS

LOOPBACK = "127.0.0.1"
PATIENT = (sys.executable, "-m", "thistle.deploy.patient")
LOOKS = "0.3"
"""Seconds between two looks of a node's superexec for work: each costs two processes some milliseconds."""


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
    bound = {PLACE: str(state.path), **({BINDINGS: str(state.bindings)} if files is not None else {})}
    bound["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "1"  # asking locks the SuperLink's database, and runs start rarely
    service = _superexec("superexec", state, port, None if files is None else files.ca, link, bound)
    service.command[:1] = [*PATIENT, "flower-superexec"]
    return service


def supernode(
    name: str, state: State, server: str, config: str, ca: Path | None = None, key: Path | None = None
) -> list[Service]:
    """A node and what starts its ClientApps."""
    health, port = f"{LOOPBACK}:{free_port()}", free_port()
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    known = [] if key is None else ["--auth-supernode-private-key", str(key)]
    where = ["--superlink", server, "--host", LOOPBACK, "--port", f"{port}", "--health-server-address", health]
    apart = ["--isolation", "process", "--superexec-auth-secret-file", str(state.secret())]
    command = [tool("flower-supernode"), *secure, *known, *where, *apart, "--node-config", config]
    node = _service(name, state, command, health)
    node.sign, node.explain = ADMITTED, explain
    looks = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": LOOKS}
    return [node, _superexec(f"{name}-superexec", state, port, None, node, looks)]


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
