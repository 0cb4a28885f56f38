"""A private SuperLink in simulation mode, for apps under `flwr run`: its own home, port, Ray and processes."""

from __future__ import annotations

import http
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import tomli_w

from thistle.engines import keeper
from thistle.engines.flower_programs import EngineError, Flwr, flower_environment, free_port, tool, write_connection
from thistle.engines.staging import stage_app, stage_code
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import nest
from thistle.flower_compat.ray_environment import PRIVATE_RAY
from thistle.protocol.text import last_line

APP = "thistle-fl"
START = 60.0
"""Seconds within which a SuperLink must answer."""


class PrivateSuperLink:
    """Started on entry, gone on exit; several runs may share one."""

    def __init__(self) -> None:
        self.session = uuid4().hex
        self.home = Path(tempfile.mkdtemp(prefix="thistle-"))
        self.app: Path | None = None
        """The Flower app that is submitted: a staged copy of ours, unless there is another."""

    def __enter__(self) -> PrivateSuperLink:
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        write_connection(self.home, address)
        self.environment = _environment(self.home)
        self.flwr = Flwr(self.environment)
        self.keeper = subprocess.Popen(
            [sys.executable, keeper.__file__, self.session, str(self.home), *command(self.port)],
            env=self.environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=self.home,  # Ray's workers import from where they are started: not from the user's folder
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.keeper.stdin:
            self.keeper.stdin.close()
        try:
            self.keeper.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
        keeper.sweep(self.session)
        shutil.rmtree(self.home, ignore_errors=True)

    def wait_until_ready(self) -> None:
        """Until it answers; says why if it never does."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            self.check_alive()
            if self._answers():
                return
            time.sleep(0.05)
        raise EngineError(f"the SuperLink did not answer within {START:.0f} s: {self.last_words()}")

    def _answers(self) -> bool:
        """Asked directly: a proxy from the environment cannot reach this machine's loopback."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def check_alive(self) -> None:
        if self.keeper.poll() is not None:
            raise EngineError("the SuperLink ended unexpectedly")

    def last_words(self) -> str:
        """The last line of the SuperLink's log."""
        log = self.home / keeper.LOG
        return last_line(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else "no log"

    def submit(self, experiment: Experiment) -> str:
        """Hand the experiment to Flower; returns Flower's run id."""
        self.app = self.app or stage_app(self.home / APP)
        stage_code(self.app, experiment)
        config = self.home / f"run-{uuid4().hex}.toml"
        config.write_text(tomli_w.dumps(nest(experiment.flat())), encoding="utf-8")
        workers = experiment.runtime.workers
        federation = (
            f"num-supernodes={workers} client-resources-num-cpus=1 init-args-num-cpus={workers} "
            "init-args-logging-level='ERROR' init-args-log-to-driver=false"
        )
        return self.run_app(self.app, config, federation)

    def run_app(self, app: Path, config: Path, federation: str) -> str:
        """Hand any Flower app to Flower, with its run config and federation config; returns Flower's run id."""
        return self.flwr.run(app, config, "--federation-config", federation)

    def status(self, run_id: str) -> tuple[str, str]:
        """Flower's own word on a run."""
        return self.flwr.status(run_id)


def command(port: int) -> list[str]:
    """Flower's, for a SuperLink that simulates; on this machine only."""
    return [tool("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", f"{port}"]


def _environment(home: Path) -> dict[str, str]:
    """Private home, private Ray on loopback only, one thread per process, nothing sent or fetched."""
    modules = os.pathsep.join(filter(None, [str(home / APP), os.environ.get("PYTHONPATH", "")]))
    return {
        **flower_environment(home),
        "PYTHONPATH": modules,  # workers import the staged app, not what is installed
        "RAY_USAGE_STATS_ENABLED": "0",
        "MALLOC_ARENA_MAX": "1",  # a thread with an arena of its own keeps 64 MB at most (thistle.tasks.freed_memory)
        **PRIVATE_RAY,
        "RAY_TMPDIR": str(home),
    }
