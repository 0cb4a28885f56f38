"""Runs on real Ray workers with another ClientApp than ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.superlink import APP, PrivateSuperLink
from thistle.engines.ray import run_on_ray
from thistle.engines.staging import stage_app
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.terminal.progress import RunProgress


def run_staged(
    experiment: Experiment, source: str, trouble: Callable[[RunFolder, str], None] | None = None
) -> RunFolder:
    """Run it with the module `source` in place of thistle.client.app; `trouble(folder, session)` goes on meanwhile.

    The app's functions must be the module's own: Flower sends workers the functions by their names.
    """
    folder = RunFolder(Path(experiment.run.out) / experiment.run.name)
    folder.create()
    with PrivateSuperLink() as link, RunProgress(folder, experiment.rounds, quiet=True) as progress:
        link.app = stage_app(link.home / APP)
        (link.app / "thistle" / "client" / "staged.py").write_text(source)
        project = link.app / "pyproject.toml"
        project.write_text(project.read_text().replace("thistle.client.app:app", "thistle.client.staged:app"))
        link.wait_until_ready()
        if trouble:
            threading.Thread(target=trouble, args=(folder, link.session), daemon=True).start()
        run_on_ray(link, experiment, folder, progress)
    return folder
