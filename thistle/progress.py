"""A live line about a run, read from its folder: whatever engine runs it, near or far, dead or alive."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from exchange.runfolder import RunFolder
from exchange.text import printable
from thistle.screen import messages


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
        yield Padding(self.make_tasks_table(self.tasks), (0, 3, 0, 0), expand=False)


WIDE = 110
"""Columns from which on there is room for words."""


def verdict_counts(line: dict[str, Any], wide: bool) -> str:
    """What became of a round's replies: `10 accepted, 2 filtered` or, where it is narrow, `10✓ 2⊘ 0✗ 0†`."""
    if not wide:
        return f"{line['accepted']}✓ {line['filtered']}⊘ {line['rejected']}✗ {line['failed']}†"
    bad = [f"{line[kind]} {kind}" for kind in ("filtered", "rejected", "failed") if line[kind]]
    return ", ".join([f"{line['accepted']} accepted", *bad])


class RunProgress:
    """Shows rounds as they finish and warnings as they come."""

    def __init__(self, folder: RunFolder, rounds: int, quiet: bool) -> None:
        self.folder, self.quiet = folder, quiet
        self.done = 0
        self.accuracy: float | None = None
        self._metrics = Tail(folder.metrics)
        self._log = Tail(folder.log, folder.log.stat().st_size if folder.log.exists() else 0)
        self._live = sys.stderr.isatty()
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[text]}"),
            TimeRemainingColumn(),
            console=messages,
            disable=quiet or not self._live,
        )
        self._task = self._bar.add_task(escape(folder.path.name), total=rounds, text="starting")

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
        for line in self._metrics.lines():
            try:
                self._round(json.loads(line))
            except (json.JSONDecodeError, KeyError, TypeError):
                continue

    def _round(self, line: dict[str, Any]) -> None:
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
