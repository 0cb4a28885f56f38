"""Flower's programs: where they are, what environment they want, and what they answer."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from thistle.flower_compat.unpacking import programs
from thistle.protocol.text import last_line

NAME = "thistle"
"""What the connection to the SuperLink is called in Flower's config.toml."""


_given: set[int] = set()
"""Ports that this process was given."""


class EngineError(Exception):
    """The machinery failed, not the experiment: shown as one line, exit code 1."""


def tool(name: str) -> str:
    """A program of Flower's, from the same place as this Python."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if not found:
        raise EngineError(f"{name} is not installed beside {sys.executable}")
    return found


def free_port() -> int:
    """One of this machine's loopback that nobody listens on; never one twice: who asked before may not listen yet."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def write_connection(home: Path, address: str, ca: Path | None = None) -> None:
    """Tell `flwr` where the SuperLink is; without a CA the connection is plain text."""
    trust = {"insecure": True} if ca is None else {"root-certificates": str(ca)}
    connection = {"superlink": {"default": NAME, NAME: {"address": address, **trust}}}
    (home / "config.toml").write_text(tomli_w.dumps(connection), encoding="utf-8")


def flower_environment(home: Path) -> dict[str, str]:
    """Private home, one thread per process, nothing sent or fetched, no proxy between processes of one machine.

    What Flower's programs start in turn, they find on the PATH: our own come first.
    """
    cache = os.environ.get("THISTLE_CACHE", "")
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1,localhost"]))
    return {
        **os.environ,
        "THISTLE_CACHE": os.path.abspath(os.path.expanduser(cache)) if cache else "",
        "PATH": os.pathsep.join([str(programs(home)), str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
        "PYTHONUNBUFFERED": "1",
    }


class Flwr:
    """The `flwr` command in an environment that knows its SuperLink."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def call(self, *arguments: str) -> dict[str, Any]:
        """What it answers as JSON."""
        command = [tool("flwr"), *arguments, "--format", "json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        start = done.stdout.find("{")
        try:
            return json.loads(done.stdout[start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            raise EngineError(f"flwr {arguments[0]}: {last_line(done.stdout + done.stderr)}") from None

    def run(self, app: Path, config: Path, *more: str) -> str:
        """Hand an app with its run config to Flower; returns Flower's run id."""
        answer = self.call("run", str(app), NAME, "-c", str(config), *more)
        if "run-id" not in answer:
            raise EngineError(f"Flower refused the run: {last_line(str(answer.get('error-message') or answer))}")
        return str(answer["run-id"])

    def status(self, run_id: str) -> tuple[str, str]:
        """Flower's own word on a run: status and details. (`flwr run` exits 0 even when the run fails.)"""
        answer = self.call("ls", NAME, "--run-id", run_id)
        if not answer.get("runs"):
            raise EngineError(f"the SuperLink does not answer: {last_line(str(answer.get('error-message') or answer))}")
        run = answer["runs"][0]
        return run["status"], run.get("status-details") or ""
