"""The ServerApp: settings in, a run folder out."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from thistle.attacks.checks import check_attack, resolve_attack
from thistle.attacks.defence import check_defence
from thistle.attacks.evasion.table import check_evaluation
from thistle.attacks.poisoning.build import check_own
from thistle.experiments.errors import RunFailed, UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import use_code
from thistle.experiments.runfolder import RunFolder, disk_fault
from thistle.flower_compat.runtime_api import is_deployed, sit_out_errors, when_flower_ends
from thistle.protocol.announce import announce
from thistle.protocol.text import last_line, printable
from thistle.server.federation import Federation
from thistle.server.sites import agreed_scheme
from thistle.server.transport.remote import STOPPED, RemoteGrid
from thistle.strategies.build import needs_server_data, resolve
from thistle.tasks.freed_memory import keep_freed_memory
from thistle.tasks.task import check_inputs, prepare_task
from thistle.tasks.threads import every_core

keep_freed_memory()
app = ServerApp()
logger = logging.getLogger("thistle")

GOING_ON = ("starting", "running")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that Flower's run config describes."""
    torch.set_num_threads(1)
    deployed = is_deployed(grid)
    if deployed:
        sit_out_errors()
    with _past_frozen(), every_core(), _aloud() if deployed else nullcontext():
        experiment = Experiment.of(context.run_config)
        folder = RunFolder(Path(experiment.run.out) / (experiment.run.name or "run"))
        use_code(folder.code)  # which settings there are, a strategy of the user's own says itself
        experiment = resolve_attack(resolve(experiment))
        folder.create(again=experiment.run.resume)
        with folder.held(), _log_to(folder):
            _run(experiment, folder, RemoteGrid(grid) if deployed else grid, deployed)


@contextmanager
def _past_frozen() -> Iterator[None]:
    """Flower's strategies collect garbage in every round: let them look at what is new only."""
    others = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not others:
            gc.unfreeze()


def _run(experiment: Experiment, folder: RunFolder, grid: Grid, deployed: bool) -> None:
    """In its folder, which says how it ends."""
    stopped = partial(_stopped, folder, deployed)
    when_flower_ends(stopped)
    try:
        folder.set_status("starting")
        folder.save_experiment(experiment)
        if deployed:
            announce("started", folder=str(folder.path.absolute()), rounds=experiment.rounds)
        scheme = agreed_scheme(experiment, folder, grid) if deployed else ""
        asks = needs_server_data(experiment)
        task = prepare_task(experiment.task, experiment.seed, asks, scheme=scheme, shared=not deployed)
        check_inputs(experiment, task)
        check_attack(experiment.attack, experiment.task.clients, experiment.rounds, task.classes, task.shape)
        check_defence(experiment)
        check_own(experiment, task.classes)
        check_evaluation(experiment.evaluate, task.classes)
        federation = Federation(experiment, task, folder, grid, deployed)
        with federation.audit.to_its_end():
            federation.run()
    except STOPPED as end:
        stopped()
        if isinstance(end, SystemExit | KeyboardInterrupt):
            raise
        sys.exit(1)  # as Flower itself ends a process whose run is over
    except Exception as raised:
        error = disk_fault(raised, folder.path) or raised
        plain = isinstance(error, UserError | RunFailed)
        shown = str(error) if plain else last_line(f"{type(error).__name__}: {error}")
        logger.error("%s", shown, exc_info=not plain)
        folder.set_status("failed", message=shown)
        raise error from raised


def _stopped(folder: RunFolder, deployed: bool) -> None:
    """Somebody ended it from outside: its folder says so, and followers are told, if that is still possible."""
    if folder.get_status().get("status") not in GOING_ON:
        return
    message = "stopped from outside; it can be continued after its last checkpoint"
    folder.set_status("stopped", message=message)
    logger.error("%s", message)
    if deployed:
        announce("stopped", message=message)


@contextmanager
def _aloud() -> Iterator[None]:
    """The user who submitted this run gets its warnings and its end; everything else is logged locally."""
    handler = Herald(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    except Exception as error:
        announce("failed", message=last_line(str(error) or type(error).__name__), user=isinstance(error, UserError))
        raise
    finally:
        logger.removeHandler(handler)


class Herald(logging.Handler):
    """Announces what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:  # an error ends the run, and is announced as its end
            announce("warning", text=printable(record.getMessage(), 400))


class Log(logging.FileHandler):
    """What cannot be written on a full disk is not worth a run."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is logging's
        return

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class Utc(logging.Formatter):
    """With the time that all of a federation's machines share."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03dZ"


@contextmanager
def _log_to(folder: RunFolder) -> Iterator[None]:
    handler = Log(folder.log, encoding="utf-8")
    handler.setFormatter(Utc("%(asctime)s %(levelname)s %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
