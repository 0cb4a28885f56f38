"""Runs as event files for TensorBoard, which is an optional extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thistle.experiments.errors import UserError
from thistle.report.reading import CLIENTS, DETECTION, MEASURES, Run, read_run
from thistle.report.sources import distinct_names


def write_events(runs: Sequence[Path], folder: Path) -> None:
    """One subfolder per run; steps are rounds, and wall time is the run's own, counted from its first round."""
    for path, name in zip(runs, distinct_names(runs), strict=True):
        _write(read_run(path, name), folder / name)


def _write(run: Run, folder: Path) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard: TensorBoard is not installed: pip install 'thistle-fl[tensorboard]'") from None
    elapsed = 0.0
    seconds = run.columns.get("seconds", ())
    clients = (f"client_accuracy.{name}" for name in CLIENTS)
    columns = {name: run.columns[name] for name in (*MEASURES, *DETECTION, *clients) if name in run.columns}
    columns |= {f"robust/{attack}": values for attack, values in run.robust.items()}
    with SummaryWriter(str(folder)) as writer:
        for place, number in enumerate(run.columns.get("round", ())):
            elapsed += (seconds[place] or 0.0) if place < len(seconds) else 0.0
            for name, values in columns.items():
                if values[place] is not None and number is not None:
                    writer.add_scalar(name, values[place], int(number), walltime=elapsed)
        settings = "\n".join(f"    {key} = {value}" for key, value in run.experiment.items())
        writer.add_text("settings", settings, walltime=0.0)
