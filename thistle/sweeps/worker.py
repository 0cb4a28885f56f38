"""A process that carries out inline cells one after the other: torch and Flower are imported once, not once a cell.

A process of its own, so that a cell that takes its process down takes nobody else down; it ends itself when the
command that started it is gone, however that ended.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from thistle.engines.flower_programs import EngineError
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.progress import RunProgress
from thistle.protocol.text import last_line

LOOK = 0.1
"""Seconds between two looks at the run folder."""
GRACE = 10.0
"""Seconds that a process has to end after it hung up."""


class Worker:
    """The process, seen from the command; started with its first cell, and again after one that killed it."""

    def __init__(self) -> None:
        self._process: Any = None
        self._line: Any = None

    def carry_out(self, experiment: Experiment, folder: RunFolder, progress: RunProgress) -> None:
        """Returns when the cell, whose folder is prepared, has finished; what interrupts that ends the process."""
        if self._process is None or not self._process.is_alive():
            self._start()
        try:
            self._line.send(experiment.flat())
            while not self._line.poll(LOOK):
                progress.update()
            problem = self._line.recv()
        except (EOFError, ConnectionError):
            self._process.join(GRACE)
            code = self._process.exitcode
            self.end()
            raise EngineError(f"its process died (exit code {code})") from None
        except BaseException:
            self.end()
            raise
        if problem:
            raise EngineError(problem)

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._line, theirs = spawn.Pipe()
        self._process = spawn.Process(target=work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """At once: every round has its checkpoint."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._line.close()
            self._process = None


def work(line: Connection) -> None:
    """Receive experiments, answer each with what went wrong: nothing, where it finished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _be_quiet()
    threading.Thread(target=_follow_parent, daemon=True).start()
    from thistle.engines.inline import run_inline

    while True:
        try:
            keys = line.recv()
        except EOFError:
            return
        gc.unfreeze()  # a run freezes what it finds: the last one's leavings should go
        gc.collect()
        try:
            run_inline(Experiment.of(keys))
            line.send("")
        except UserError as error:
            line.send(str(error))
        except Exception as error:
            line.send(last_line(f"{type(error).__name__}: {error}"))


def _be_quiet() -> None:
    """Whatever libraries print would tear the display; the run folder's log has what matters."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
