"""The results of runs and sweeps as Python objects: numbers, model, page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thistle.commands.resume import find_run
from thistle.experiments.errors import RunFailed, UserError
from thistle.experiments.experiment import Experiment, flatten_tables
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.results.shown import accuracy_line

if TYPE_CHECKING:
    import numpy as np
    from torch import device, nn

    from thistle.results.trained import Picture, Prediction, Trained
    from thistle.sweeps.launch import Ended


class Run:
    """A run and all its results, finished or not. Numbers are read from its folder each time you ask for them."""

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        """`model`: the file of the weights, if it is not the folder's own."""
        self.folder = folder
        self._files = RunFolder(folder)
        self._source = model or folder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def status(self) -> str:
        """finished, paused, failed, stopped, running, starting, not begun."""
        return str(self._files.get_status().get("status", "not begun"))

    @cached_property
    def experiment(self) -> Experiment:
        """Every setting, resolved."""
        return self._files.load_experiment()

    @property
    def summary(self) -> dict[str, Any]:
        """The result: `last_accuracy`, `model_sha256` and so on (docs/run-folder.md)."""
        if not self._files.summary.is_file():
            raise UserError(f"{self.folder}: the run is {self.status} and has no summary yet")
        return dict(read_json(self._files.summary))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per round."""
        return list(read_lines(self._files.metrics))

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """One dictionary per round and sampled client."""
        return list(read_lines(self._files.verdicts))

    def frame(self, of: Literal["metrics", "verdicts"] = "metrics") -> Any:
        """The metrics, or the verdicts, as a pandas DataFrame; nested figures have dotted names."""
        return make_frame(self.verdicts if of == "verdicts" else self.metrics)

    @cached_property
    def trained(self) -> Trained:
        """The final model with everything needed to use it."""
        from thistle.results.trained import Trained, find_subject

        return Trained(find_subject(str(self._source), ""))

    @property
    def model(self) -> nn.Module:
        """The network with its final weights, in eval mode."""
        return self.trained.network

    @property
    def network(self) -> nn.Module:
        """The same as `model`."""
        return self.trained.network

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names in the order of the logits."""
        return self.trained.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: channels, height and width of an image."""
        return self.trained.shape

    @property
    def device(self) -> device:
        """Where the model is."""
        return self.trained.device

    def predict(self, images: Picture | Iterable[Picture]) -> list[Prediction]:
        """One prediction per image: paths, PIL images or arrays, one or several."""
        return self.trained.predict(images)

    def probabilities(self, images: Picture | Iterable[Picture]) -> np.ndarray:
        """n × classes, each row sums to 1."""
        return self.trained.probabilities(images)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page that `thistle report` makes; default: report.html in the run folder."""
        return write_report([self.folder], [], path)

    def __repr__(self) -> str:
        facts = [self.status]
        if self._files.experiment.is_file():
            facts.append(f"{self.experiment.strategy.name} on {self.experiment.task.name}")
        if self._files.summary.is_file():
            facts.append(f"{self.summary['rounds']} rounds, {accuracy_line(self.summary)}")
        else:
            facts.append(f"{len(self.metrics)} rounds")
        return f"<Run {self.name}: {', '.join(facts)}; {self.folder}>"


class SweepResult:
    """A sweep in which every cell has been tried."""

    def __init__(self, folder: Path, ended: Ended) -> None:
        self.folder = folder
        self._ended = ended

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dictionary per cell: the axes' values, the seed, status and figures (the columns of sweep.csv)."""
        from thistle.sweeps.tables import make_rows

        return make_rows(self._ended.grid.sweep, self._ended.grid.results)

    @cached_property
    def runs(self) -> list[Run]:
        """The cells as runs, in the order of the table."""
        return [Run(result.cell.folder.path) for result in self._ended.grid.results]

    @property
    def failed(self) -> dict[str, str]:
        """Cells that have not finished, and why."""
        return dict(self._ended.failed)

    @property
    def expectations(self) -> list[dict[str, Any]]:
        """What the sweep's file expects, what was found, and whether it held."""
        return [finding.document() for finding in self._ended.findings]

    def frame(self) -> Any:
        """The table as a pandas DataFrame."""
        return make_frame(self.table)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page that `thistle report` makes; default: report.html in the sweep's folder."""
        return write_report([], [self.folder], path)

    def __repr__(self) -> str:
        count = len(self._ended.grid.results)
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<SweepResult {self.name}: {count} cells{failed}; {self.folder}>"


class CellsFailed(RunFailed):
    """Some of many runs failed; `result` has the others."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message, result.folder)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)


class SweepFailed(CellsFailed):
    """Some cells of a sweep failed."""

    result: SweepResult


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame, where pandas is installed."""
    try:
        import pandas
    except ImportError:
        raise ImportError("frame() needs pandas, which is not installed: pip install pandas") from None
    return pandas.DataFrame([flatten_tables(row) for row in rows])


def write_report(runs: list[Path], sweeps: list[Path], path: str | Path | None) -> Path:
    """The page of these folders; default: report.html in the folder."""
    from thistle.report.page import write_page

    return write_page(runs, sweeps, Path(path).expanduser() if path is not None else None)


def open_run(run: str | Path, out: str | Path = "runs") -> Run:
    """A run by its folder or its name below `out`, whatever its state."""
    return Run(find_run(str(run), str(out)).path)


def load_run(run: str | Path, out: str | Path = "runs") -> Run:
    """A run whose final model exists and can be used: by folder, by name below `out`, or by its model's file."""
    path = Path(run).expanduser()
    found = Run(path.resolve().parent, path.resolve()) if path.suffix == ".safetensors" else open_run(run, out)
    _ = found.trained
    return found
