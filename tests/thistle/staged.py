"""Runs on real Ray workers with another ClientApp than ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from thistle.engines.ray import RayProcess
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.terminal.progress import RunProgress


class Staged(RayProcess):
    """With a module more in the app, whose ClientApp the workers run."""

    client = "thistle.client.staged"
    source = ""

    def stage(self) -> Path:
        app = super().stage()
        (app / "thistle" / "client" / "staged.py").write_text(self.source)
        return app


def run_staged(
    experiment: Experiment, source: str, trouble: Callable[[RunFolder, str], None] | None = None
) -> RunFolder:
    """Run it with the module `source` in place of thistle.client.app; `trouble(folder, session)` goes on meanwhile.

    The app's functions must be the module's own: Flower sends workers the functions by their names.
    """
    folder = RunFolder(Path(experiment.run.out) / experiment.run.name)
    folder.create()
    process = Staged(experiment.runtime)
    process.source = source
    with process, RunProgress(folder, experiment.rounds, quiet=True) as progress:
        if trouble:
            threading.Thread(target=trouble, args=(folder, process.session), daemon=True).start()
        process.carry_out(experiment, folder, progress)
    return folder
