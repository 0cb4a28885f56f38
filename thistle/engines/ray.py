"""The Ray engine: our process in which Flower's Simulation Runtime carries out runs, one after the other.

It starts with the command, so that Ray and its workers warm up while the experiment is still checked; they stay until
the command ends, and all its runs share them. The keeper starts it, and cleans up after it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO
from uuid import uuid4

from thistle.engines.flower_programs import flower_environment
from thistle.engines.process import RunProcess
from thistle.engines.staging import stage_app, stage_code
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.experiments.settings import Runtime
from thistle.flower_compat.ray_environment import PRIVATE_RAY
from thistle.terminal.addresses import parse_address
from thistle.terminal.progress import RunProgress

APP = "app"
KEEPER = Path(__file__).with_name("keeper.py")
START = "import sys; sys.path[:0] = sys.argv[1:2]; from thistle.server.serving import simulate; simulate(*sys.argv[2:])"


class RayProcess(RunProcess):
    """Started on entry, gone on exit with all that it started."""

    client = "thistle.client.app"
    """The module whose ClientApp the workers run."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.session, self.home = "", Path()

    def __enter__(self) -> RayProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def carry_out(self, experiment: Experiment, folder: RunFolder, progress: RunProgress) -> None:
        self.start()
        stage_code(self.home / APP, experiment)
        super().carry_out(experiment, folder, progress)

    def launch(self, descriptor: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        self.session, self.home = uuid4().hex, Path(tempfile.mkdtemp(prefix="thistle-"))
        app = self.stage()
        settings = [self.client, f"{descriptor}", f"{self.runtime.workers}", self.runtime.device]
        command = [sys.executable, "-c", START, str(app), *settings]
        return subprocess.Popen(
            [sys.executable, str(KEEPER), self.session, str(self.home), *command],
            env=_environment(self.home, app, self.runtime.ray_address),
            stdin=subprocess.PIPE,
            stderr=errors,
            pass_fds=[descriptor],
            start_new_session=True,
            cwd=self.home,  # Ray's workers import from where they are started: not from the user's folder
        )

    def stage(self) -> Path:
        """A copy of the rooms, beside which the user's own code is put; with what was compiled of it."""
        return stage_app(self.home / APP, compiled=True)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """The keeper ends when its input closes, after it has swept."""
        from thistle.engines.keeper import sweep  # which needs psutil

        if process.stdin:
            process.stdin.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
        sweep(self.session)
        shutil.rmtree(self.home, ignore_errors=True)


def check_address(address: str) -> None:
    """Whether a Ray cluster could be there; Ray itself would try for a minute, and say it at length."""
    where = parse_address("runtime.ray-address =", address, "as `ray start --head` shows it")
    try:
        socket.create_connection(where, timeout=5).close()
    except OSError as error:
        raise UserError(f"runtime.ray-address = {address!r}: no answer there ({error})") from None


def _environment(home: Path, app: Path, ray_address: str) -> dict[str, str]:
    """Private home, private Ray on loopback only (or a cluster), one thread per process, nothing sent or fetched."""
    ray = {"RAY_ADDRESS": ray_address} if ray_address else PRIVATE_RAY | {"RAY_TMPDIR": str(home)}
    places = [str(app), os.environ.get("PYTHONPATH", "")]
    return {
        **flower_environment(home),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),  # workers import the staged app, not what is installed
        "RAY_USAGE_STATS_ENABLED": "0",
        "MALLOC_ARENA_MAX": "1",  # a thread with an arena of its own keeps 64 MB at most (thistle.tasks.freed_memory)
        **ray,
    }
