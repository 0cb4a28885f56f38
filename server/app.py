"""The ServerApp: settings in, a run folder out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from attacks.evasion.table import check_evaluation
from attacks.poisoning.build import check_own
from attacks.table import check_attack
from exchange.errors import UserError
from exchange.experiment import Experiment
from exchange.runfolder import RunFolder
from exchange.text import last_line
from server.federation import Federation
from strategies.table import needs_server_data, resolve
from tasks.task import prepare_task

app = ServerApp()
logger = logging.getLogger("thistle")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that Flower's run config describes."""
    torch.set_num_threads(1)
    gc.freeze()  # Flower's strategies collect garbage in every round: let them look at what is new only
    experiment = resolve(Experiment.of(context.run_config))
    folder = RunFolder(Path(experiment.run.out) / (experiment.run.name or "run"))
    folder.create(again=experiment.run.resume)
    with folder.held(), _log_to(folder):
        folder.set_status("starting")
        folder.save_experiment(experiment)
        try:
            task = prepare_task(experiment.task, experiment.seed, needs_server_data(experiment.strategy))
            check_attack(experiment.attack, experiment.task.clients, experiment.rounds, task.classes)
            check_own(experiment, task.classes)
            check_evaluation(experiment.evaluate)
            Federation(experiment, task, folder, grid).run()
        except Exception as error:
            shown = str(error) if isinstance(error, UserError) else last_line(f"{type(error).__name__}: {error}")
            logger.error("%s", shown, exc_info=not isinstance(error, UserError))
            folder.set_status("failed", message=shown)
            raise


@contextmanager
def _log_to(folder: RunFolder) -> Iterator[None]:
    handler = logging.FileHandler(folder.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
