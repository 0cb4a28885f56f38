"""A live line about a run, read from its folder: whatever engine runs it, near or far, dead or alive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.constrain import Constrain
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from thistle.experiments.runfolder import RunFolder
from thistle.protocol.text import printable
from thistle.terminal.screen import is_live, messages


class Tail:
    """The complete new lines of a growing file."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path, self.position = path, start

    def lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.position += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


class Bar(Progress):
    """Rich's bar, three columns short of the edge: the ^C that a terminal echoes would break a full line."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield Constrain(self.make_tasks_table(self.tasks), messages.width - 3)


WIDE = 110
"""Columns from which on there is room for words."""


def verdict_counts(line: dict[str, Any], wide: bool) -> str:
    """The outcomes of a round's replies: `10 accepted, 2 filtered` or, on a narrow terminal, `10✓ 2⊘ 0✗ 0†`."""
    if not wide:
        return f"{line['accepted']}✓ {line['filtered']}⊘ {line['rejected']}✗ {line['failed']}†"
    bad = [f"{line[kind]} {kind}" for kind in ("filtered", "rejected", "failed") if line[kind]]
    return ", ".join([f"{line['accepted']} accepted", *bad])


class RunProgress:
    """Shows rounds as they finish and warnings as they come."""

    def __init__(self, folder: RunFolder, rounds: int, quiet: bool) -> None:
        self.folder, self.rounds, self.quiet = folder, rounds, quiet
        self.done = 0
        self.accuracy: float | None = None
        self._metrics = Tail(folder.metrics)
        self._log = Tail(folder.log, folder.log.stat().st_size if folder.log.exists() else 0)
        self._live = is_live()
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[text]}"),
            TimeRemainingColumn(),
            console=messages,
            disable=quiet or not self._live,
        )
        for line in self._rounds():  # of before, where a run is resumed
            self.done, self.accuracy = line["round"], line.get("accuracy", self.accuracy)
        name = escape(printable(folder.path.name, 32 if messages.width >= WIDE else 14))
        self._task = self._bar.add_task(name, total=rounds, completed=self.done, text="starting")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.update()
        self._bar.stop()

    def update(self) -> None:
        """Read what is new."""
        for line in self._log.lines():
            if " WARNING " in line or " ERROR " in line:
                self._print(printable(line.split(" ", 2)[-1], 400))
        for finished in self._rounds():
            self._show(finished)

    def _rounds(self) -> Iterator[dict[str, Any]]:
        """The rounds that are new in the metrics."""
        for line in self._metrics.lines():
            try:
                value = json.loads(line)
            except json.JSONDecodeError:  # a resumed run cuts off what its checkpoint does not know
                continue
            if isinstance(value, dict) and "round" in value:
                yield value

    def _show(self, line: dict[str, Any]) -> None:
        self.done = line["round"]
        self.accuracy = line.get("accuracy", self.accuracy)
        text = " ".join(
            [
                f"accuracy {self.accuracy:.3f}" if self.accuracy is not None else "",
                verdict_counts(line, wide=not self._live or messages.width >= WIDE),
                f"{line['seconds']:.2f} s/round",
            ]
        ).strip()
        self._bar.update(self._task, completed=self.done, text=text)
        if not self._live and "accuracy" in line:
            self._print(f"{self.folder.path.name}: round {self.done}: {text}")

    def _print(self, text: str) -> None:
        if not self.quiet:
            messages.print(escape(text))
