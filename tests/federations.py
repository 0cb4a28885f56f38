"""Tiny federations in this process, for tests of everything around a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.server.app import main

TINY: dict[str, Any] = {
    "rounds": 4,
    "task.clients": 12,
    "client.per-round": 4,
    "client.epochs": 1,
    "client.batch-size": 25,
    "model.name": "mlp",
    "evaluate.every": 2,
    "runtime.workers": 2,
}


def tiny(out: Path, name: str = "run", **more: Any) -> Experiment:
    """A run of a second; keys are written with dots: **{"client.lr": 1.0}."""
    return Experiment.of({**TINY, "run.out": str(out), "run.name": name, **more})


def run(experiment: Experiment, grid: Grid | None = None) -> RunFolder:
    """Run it with the real apps (over `grid` where given); returns its folder."""
    inner = grid or InlineGrid(client_app, experiment, experiment.runtime.workers)
    main(inner, Context(1, 1, {}, RecordDict(), dict(experiment.flat())))
    return RunFolder(Path(experiment.run.out) / experiment.run.name)


def model_sha(folder: RunFolder) -> str:
    return str(read_json(folder.summary)["model_sha256"])


def rounds(folder: RunFolder) -> list[dict[str, Any]]:
    return list(read_lines(folder.metrics))


def timeless(folder: RunFolder) -> list[dict[str, Any]]:
    """The metrics' lines without what the clock says."""
    lines = read_lines(folder.metrics)
    return [{key: value for key, value in one.items() if key != "time" and "seconds" not in key} for one in lines]


def verdicts(folder: RunFolder) -> list[dict[str, Any]]:
    """Without the time: the same run at another hour says the same."""
    return [{key: value for key, value in line.items() if key != "time"} for line in read_lines(folder.verdicts)]
