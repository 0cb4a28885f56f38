"""The Ray engine: submit to a private SuperLink, then watch the run folder until the run is over."""

from __future__ import annotations

import time

from thistle.engines.flower_programs import EngineError
from thistle.engines.superlink import PrivateSuperLink
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.protocol.text import last_line
from thistle.terminal.progress import RunProgress

LOOK = 0.1
"""Seconds between two looks at the run folder."""
ASK = 5.0
"""Seconds between two questions to Flower while the ServerApp has not shown itself."""


def gpus_for(experiment: Experiment) -> float:
    """GPUs that the workers share."""
    import torch

    from thistle.tasks.training import pick_device

    return float(torch.cuda.device_count()) if pick_device(experiment.runtime.device).type == "cuda" else 0.0


def run_on_ray(link: PrivateSuperLink, experiment: Experiment, folder: RunFolder, progress: RunProgress) -> None:
    """Returns when the run has finished; raises EngineError where it has not."""
    folder.status.unlink(missing_ok=True)
    run_id = link.submit(experiment, gpus_for(experiment))
    asked = time.monotonic()
    while True:
        progress.update()
        status = folder.get_status()
        if status.get("status") in ("finished", "paused"):
            return
        if status.get("status") in ("failed", "stopped"):
            raise EngineError(status["message"])
        if status and not folder.is_held() and folder.get_status() == status:
            _, details = link.status(run_id)
            raise EngineError(f"the server process died: {last_line(details)}")
        link.check_alive()
        if not status and time.monotonic() - asked > ASK:
            asked = time.monotonic()
            word, details = link.status(run_id)
            if word.startswith("finished") and not folder.get_status():
                raise EngineError(f"Flower ended the run before it began: {details or word}")
        time.sleep(LOOK)
