"""The sources of data by name: data sets (`mnist`), and forms in which users bring their own (`folder:PATH`).

A source is a function from what an experiment asks for to the data that it found, not decoded yet. Each enters itself
where it is written; every module of this package is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thistle.experiments import settings
from thistle.experiments.registry import Registry
from thistle.tasks.sources.cache import Reader


@dataclass(frozen=True)
class Wanted:
    """What an experiment asks a source for."""

    name: str
    """All of it: `mnist`, or `folder:/data/birds`."""
    data_dir: str = ""
    """`task.data-dir`, where files may be; empty: only the cache is looked at."""
    options: settings.Task = field(default_factory=settings.Task)
    """How to read the user's own files."""
    scheme: str = ""
    """How the rows of a table become values; empty: to be made from its training rows."""

    @property
    def path(self) -> Path:
        """What stands behind the colon."""
        return Path(self.name.partition(":")[2]).expanduser()


@dataclass(frozen=True)
class Found:
    """Data that is there, and how to decode it."""

    identity: Any
    """Anything JSON can hold that changes when the content does: the cache is keyed by it."""
    read: Reader
    """Stores both splits in the workspace it is given, and returns the names of the classes."""
    where: str
    """Whose data it is, for an error."""


Source = Callable[[Wanted], Found]


def _order(name: str) -> tuple[bool, bool, str]:
    """The one that needs no download, the other data sets, then the users' own."""
    return ":" in name, name != "digits", name


SOURCES: Registry[Source] = Registry("task", package="thistle.tasks.sources", order=_order)


def source_of(name: str) -> Source | None:
    """The source that this name asks for: its own name, or a form with something behind the colon."""
    kind, _, rest = name.partition(":")
    if ":" not in name:
        return SOURCES.get(name)
    return SOURCES.get(f"{kind}:PATH") if rest else None
