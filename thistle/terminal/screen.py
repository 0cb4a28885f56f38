"""What a person sees: one console for messages (stderr), one for results (stdout)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

messages = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)  # mine:x: is a name, not a symbol
results = Console(highlight=False, emoji=False)


def is_live() -> bool:
    """Whether a bar can be redrawn here: in a terminal, or in a notebook that has widgets."""
    if messages.is_jupyter:
        return find_spec("ipywidgets") is not None
    return bool(sys.stderr and sys.stderr.isatty())


def complain(text: str) -> None:
    """One line that says what is wrong."""
    messages.print(f"[bold red]thistle:[/] {escape(text)}")


def say(text: str) -> None:
    """One line of progress."""
    messages.print(escape(text))


def log(text: str) -> None:
    """One line of what a server or a node does, with the time that all machines of a federation share."""
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ} {text}")


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A small table; cells are text, never markup."""
    made = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    made.show_header = any(columns)
    for name in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


@contextmanager
def decoding(quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar for the first decoding of a data set; nothing is shown where there is nothing to decode."""
    with Progress(console=messages, transient=True, disable=quiet or not messages.is_terminal) as bar:
        task = bar.add_task("decoding images", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield show


@contextmanager
def attacking(total: int) -> Iterator[Callable[[str, int], None]]:
    """A bar over all images of all attacks, named by the attack that is under way."""
    with Progress(console=messages, transient=True, disable=not messages.is_terminal) as bar:
        task = bar.add_task("attacking", total=total)

        def show(name: str, done: int) -> None:
            bar.update(task, description=name, advance=done)

        yield show
