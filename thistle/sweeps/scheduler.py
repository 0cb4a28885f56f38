"""Runs cells, several at once: one thread per job waits for its cell; the main thread shows their progress."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.protocol.text import last_line, printable
from thistle.results.shown import accuracy_line
from thistle.sweeps.cells import Cell, check_folder
from thistle.terminal.progress import Bar, RunProgress
from thistle.terminal.screen import is_live, messages

Carry = Callable[[Experiment, RunFolder, RunProgress], None]
PATIENCE = 30.0
"""Seconds that a cell's folder may still be held by a process of an earlier sweep, which is about to end."""
LOOK = 0.2


class Stopped(Exception):
    """The user wants no more."""


class CellProgress(RunProgress):
    """How far a cell is; the place where a waiting thread learns that it should stop."""

    def __init__(self, cell: Cell, stop: threading.Event) -> None:
        super().__init__(cell.folder, cell.experiment.rounds, quiet=True)
        self._stop = stop
        self._launched = time.monotonic()
        self.start_up: float | None = None

    def update(self) -> None:
        if self._stop.is_set():
            raise Stopped
        if self.start_up is None and self.folder.get_status().get("status") in ("running", "paused", "finished"):
            self.start_up = time.monotonic() - self._launched
        super().update()


@dataclass(frozen=True)
class Outcome:
    """How a cell ended in this command."""

    cell: Cell
    message: str
    """Empty where it finished."""
    start_up: float | None


class Scheduler:
    """A queue of cells and as many threads as there are jobs."""

    def __init__(self, cells: Sequence[Cell], total: int, carriers: Sequence[Carry], quiet: bool = False) -> None:
        """`total` counts the cells that were finished before, too."""
        self.quiet = quiet
        self.outcomes: list[Outcome] = []
        self._waiting = deque(cells)
        self._total, self._before = total, total - len(cells)
        self._stop = threading.Event()
        self._running: dict[str, CellProgress] = {}
        self._labels = {cell.id: cell.label for cell in cells}
        self._threads = [threading.Thread(target=self._work, args=(carry,), daemon=True) for carry in carriers]

    def run(self) -> list[Outcome]:
        """All of them; Ctrl-C leaves every cell resumable."""
        with self._bar() as bar:
            whole = bar.add_task("cells", total=self._total, completed=self._before, text="")
            lines: dict[str, Any] = {}
            for thread in self._threads:
                thread.start()
            try:
                while any(thread.is_alive() for thread in self._threads):
                    self._show(bar, lines)
                    bar.update(whole, completed=self._before + len(self.outcomes))
                    time.sleep(LOOK)
            except KeyboardInterrupt:
                self._stop.set()
                for thread in self._threads:
                    thread.join(timeout=10)
                raise
        return self.outcomes

    def _bar(self) -> Bar:
        return Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[text]}"),
            TimeElapsedColumn(),
            console=messages,
            transient=True,
            disable=self.quiet or not is_live(),
        )

    def _show(self, bar: Bar, lines: dict[str, Any]) -> None:
        """One line for each cell that is under way."""
        running = dict(self._running)
        for name in [name for name in lines if name not in running]:
            bar.remove_task(lines.pop(name))
        for name, progress in running.items():
            if name not in lines:
                label = escape(printable(self._labels[name], 48))
                lines[name] = bar.add_task(label, total=progress.rounds, text="starting")
            accuracy = f"accuracy {progress.accuracy:.3f}" if progress.accuracy is not None else ""
            bar.update(lines[name], completed=progress.done, text=accuracy)

    def _work(self, carry: Carry) -> None:
        while not self._stop.is_set():
            try:
                cell = self._waiting.popleft()
            except IndexError:
                return
            self._carry_out(cell, carry)

    def _carry_out(self, cell: Cell, carry: Carry) -> None:
        """One cell; what goes wrong with it is its own affair."""
        message, start_up = "", None
        try:
            prepare(cell)
            progress = self._running[cell.id] = CellProgress(cell, self._stop)
            resumed = cell.experiment.run.model_copy(update={"resume": True})
            carry(cell.experiment.model_copy(update={"run": resumed}), cell.folder, progress)
            start_up = progress.start_up
        except Exception as error:
            if self._stop.is_set():
                cell.folder.set_status("stopped", message="stopped by the user")
                return
            message = last_line(str(error)) or type(error).__name__
            if cell.folder.path.is_dir():
                cell.folder.set_status("failed", message=message)
        finally:
            self._running.pop(cell.id, None)
        self.outcomes.append(Outcome(cell, message, start_up))
        if not self.quiet:
            self._tell(cell, message)

    def _tell(self, cell: Cell, message: str) -> None:
        """The summary line of a cell."""
        count = f"{self._before + len(self.outcomes)}/{self._total}"
        if message:
            messages.print(f"[bold red]{count} failed[/] {escape(cell.label)}: {escape(message)}")
            return
        if cell.folder.get_status().get("status") == "paused":
            evaluated = [line for line in read_lines(cell.folder.metrics) if line.get("accuracy") is not None]
            accuracy = f": accuracy {evaluated[-1]['accuracy']:.4f}" if evaluated else ""
            messages.print(f"{count} {escape(cell.label)}{accuracy} after {cell.experiment.run.until} rounds")
            return
        summary = read_json(cell.folder.summary)
        lost = f", {summary['lost_rounds']} of them lost" if summary["lost_rounds"] else ""
        early = "" if summary["ended"] == "rounds" else f", ended by {summary['ended']}"
        messages.print(
            f"{count} {escape(cell.label)}: {accuracy_line(summary)} "
            f"after {summary['rounds']} rounds{lost}, {summary['seconds']:.1f} s{early}"
        )


def prepare(cell: Cell) -> None:
    """Prepare the folder for a run: it exists and belongs to this run alone."""
    folder = cell.folder
    folder.create(again=True)
    check_folder(cell)
    folder.wait_until_free(PATIENCE)
    folder.status.unlink(missing_ok=True)
    folder.save_experiment(cell.experiment)
