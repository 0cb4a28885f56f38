"""A process that carries out inline cells one after the other: torch and Flower are imported once, not once a cell.

A process of its own, so that a cell that takes its process down takes nobody else down; it ends itself when the
process that started it is gone, however that ended. It is not one of multiprocessing's: those import the program's
main file again, and a user's script that calls `thistle.sweep` would start a sweep in every worker.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from thistle.engines.flower_programs import EngineError
from thistle.experiments.errors import RunFailed, UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.protocol.text import last_line
from thistle.terminal.progress import RunProgress

LOOK = 0.1
"""Seconds between two looks at the run folder."""
GRACE = 10.0
"""Seconds that a process has to end after it hung up."""
START = "import sys; sys.path[:] = sys.argv[2:]; from thistle.sweeps.worker import work; work(int(sys.argv[1]))"
"""What the process runs: it imports from where this one does."""


class Worker:
    """The process, seen from the command; started with its first cell, and again after one that killed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Any = None

    def carry_out(self, experiment: Experiment, folder: RunFolder, progress: RunProgress) -> None:
        """Returns when the cell, whose folder is prepared, has finished; what interrupts that ends the process."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        try:
            self._line.send(experiment.flat())
            while not self._line.poll(LOOK):
                progress.update()
            problem = self._line.recv()
        except (EOFError, ConnectionError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            code = process.returncode
            self.end()
            raise EngineError(f"its process died (exit code {code})") from None
        except BaseException:
            self.end()
            raise
        if problem:
            raise EngineError(problem)

    def _start(self) -> subprocess.Popen[bytes]:
        """Whatever libraries print there would tear the display; the run folder's log has what matters."""
        self.end()
        self._line, theirs = multiprocessing.Pipe()
        places = [place for place in sys.path if isinstance(place, str)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs.fileno()), *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        return self._process

    def end(self) -> None:
        """At once: every round has its checkpoint."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
            self._line.close()
            self._process = None


def work(descriptor: int) -> None:
    """Receive experiments, answer each with what went wrong: nothing, where it finished."""
    line = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    from thistle.engines.inline import run_inline

    while True:
        try:
            keys = line.recv()
        except EOFError:
            return
        gc.collect()  # the last run's leavings should go
        try:
            run_inline(Experiment.of(keys))
            line.send("")
        except (UserError, RunFailed) as error:
            line.send(str(error))
        except Exception as error:
            line.send(last_line(f"{type(error).__name__}: {error}"))


def _follow_parent() -> None:
    """Nobody writes to standard input; it closes when the process that started this one is gone."""
    os.read(0, 1)
    os._exit(1)
