"""What `thistle stress` has found, as a Python object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from thistle.results.runs import CellsFailed, Run, make_frame, write_report

if TYPE_CHECKING:
    from thistle.worst_case.document import Found


class StressResult:
    """A search that has ended: the worst case at each fraction of malicious clients."""

    def __init__(self, folder: Path, found: Found) -> None:
        self.folder = folder
        self._found = found

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def worst(self) -> dict[float, dict[str, Any]]:
        """By fraction: `attack`, `settings`, `accuracy`, `accuracy_error`, `quote` and so on (docs/stress.md).

        Of the suite `all` these are the standard attacks; `worst_backdoor` has the others.
        """
        return self._of("backdoor" if self._found.question.suite == "backdoor" else "standard")

    @property
    def worst_backdoor(self) -> dict[float, dict[str, Any]]:
        """The most successful backdoor by fraction; `success` is its rate."""
        return self._of("backdoor")

    def _of(self, suite: str) -> dict[float, dict[str, Any]]:
        return {row["fraction"]: row for row in self._found.results if row["suite"] == suite}

    @property
    def no_attack(self) -> dict[str, Any]:
        """The same experiment without an attack: `accuracy`, `accuracy_error`, `accuracy_by_seed`."""
        return dict(self._found.document()["no_attack"])

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dictionary per candidate and fraction: how far it came, and its figures."""
        return list(self._found.document()["candidates"])

    @property
    def runs(self) -> list[Run]:
        """Every run of the search, those without an attack first; many of them are paused after a short run."""
        trials = (self._found.nobody, *self._found.trials)
        return [Run(cell.folder.path) for trial in trials for cell in trial.cells]

    @property
    def failed(self) -> dict[str, str]:
        """Runs that have not finished, and why."""
        return dict(self._found.failed)

    @property
    def left_out(self) -> dict[str, str]:
        """Attacks that the experiment does not allow, and why."""
        return {one.candidate.label: one.reason for one in self._found.left_out}

    def frame(self) -> Any:
        """The table as a pandas DataFrame."""
        return make_frame(self.table)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page that `thistle report` makes; default: report.html in the search's folder."""
        return write_report([], [self.folder], path)

    def __repr__(self) -> str:
        quotes = "; ".join(row["quote"] for row in self._found.results) or "no result"
        return f"<StressResult {self.name}: {quotes}; {self.folder}>"


class StressFailed(CellsFailed):
    """Some runs of a search failed."""

    result: StressResult
