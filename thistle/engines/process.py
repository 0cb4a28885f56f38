"""A process that carries out runs one after the other: torch, Flower and Ray are started once, not once a run.

A process of its own, so that a run that takes its process down takes nobody else down; it ends itself when the
process that started it is gone, however that ended. It is not one of multiprocessing's: those import the program's
main file again, and a user's script that calls `thistle.sweep` would start a sweep in every worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

from thistle.engines.flower_programs import EngineError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.protocol.text import last_line
from thistle.terminal.progress import RunProgress

LOOK = 0.05
"""Seconds between two looks at the run folder."""
GRACE = 30.0
"""Seconds that a process has to end after it hung up."""
START = "import sys; sys.path[:] = sys.argv[2:]; from thistle.engines.process import inline; inline(int(sys.argv[1]))"
"""What an inline process runs: it imports from where this one does."""


class RunProcess:
    """The process, seen from the command; started with its first run, and again after one that killed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Any = None
        self._said: IO[bytes] | None = None
        """What the process prints as errors."""

    def carry_out(self, experiment: Experiment, folder: RunFolder, progress: RunProgress) -> None:
        """Returns when the run, whose folder is prepared, has finished; what interrupts that ends the process."""
        process = self.start()
        try:
            self._line.send(experiment.flat())
            while not self._line.poll(LOOK):
                progress.update()
            problem = self._line.recv()
        except (EOFError, ConnectionError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            code, words = process.returncode, self._last_words()
            self.end()
            raise EngineError(f"its process died (exit code {code}){words}") from None
        except BaseException:
            self.end()
            raise
        if problem:
            raise EngineError(problem)

    def _last_words(self) -> str:
        """Why a process ended itself; what one that was killed has said explains nothing."""
        if self._said is None or self._process is None or self._process.returncode != 1:
            return ""
        self._said.seek(0)
        text = self._said.read().decode(errors="replace")
        return f": {last_line(text)}" if text.strip() else ""

    def start(self) -> subprocess.Popen[bytes]:
        """The process, a new one if need be."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._line, theirs = multiprocessing.Pipe()
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
            self._process = self.launch(theirs.fileno(), self._said)
            theirs.close()
        return self._process

    def launch(self, descriptor: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Whatever libraries print there would tear the display; the run folder's log has what matters."""
        places = [place for place in sys.path if isinstance(place, str)]
        return subprocess.Popen(
            [sys.executable, "-c", START, f"{descriptor}", *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[descriptor],
        )

    def end(self) -> None:
        """At once: every round has its checkpoint."""
        if self._process is not None:
            self.stop(self._process)
            self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
            self._line.close()
            self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()


def inline(descriptor: int) -> None:
    """In the process: inline runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    from thistle.engines.inline import run_inline
    from thistle.server.serving import serve

    serve(descriptor, run_inline)


def _follow_parent() -> None:
    """Nobody writes to standard input; it closes when the process that started this one is gone."""
    os.read(0, 1)
    os._exit(1)
