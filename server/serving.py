"""The server's side of a process that carries out one run after the other, as somebody asks for them."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection

from thistle.experiments.errors import RunFailed, UserError
from thistle.experiments.experiment import Experiment
from thistle.protocol.text import last_line


def serve(descriptor: int, carry: Callable[[Experiment], None]) -> None:
    """Receive experiments, answer each with what went wrong: nothing, where it finished."""
    line = Connection(descriptor)
    while True:
        try:
            keys = line.recv()
        except EOFError:
            return
        gc.collect()  # free what the last run left
        try:
            carry(Experiment.of(keys))
            line.send("")
        except (UserError, RunFailed) as error:
            line.send(str(error))
        except Exception as error:
            line.send(last_line(f"{type(error).__name__}: {error}"))


def simulate(client: str, descriptor: str, workers: str, device: str) -> None:
    """Runs on Ray's workers, which start before anybody has asked for a run; `client`: the module of their app."""
    os.set_inheritable(int(descriptor), False)  # Ray's processes would hold the line open
    meanwhile = threading.Thread(target=import_module, args=("thistle.server.app",))
    meanwhile.start()
    from thistle.flower_compat import simulation

    if simulation.LOCAL:
        simulation.keep_workers(client, int(workers), device)
    simulation.end_when_told()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's business
    meanwhile.join()
    from thistle.server.app import app

    def carry(experiment: Experiment) -> None:
        runtime = experiment.runtime
        simulation.keep_workers(client, runtime.workers, runtime.device)
        simulation.simulate(app, experiment.flat())

    serve(int(descriptor), carry)
