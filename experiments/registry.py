"""Things by name: each enters itself where it is written, with one line about it and its paper.

MODELS: Registry[Builder] = Registry("model", package="thistle.tasks.models")

@MODELS.add("mlp", "two hidden layers of 200")
def mlp(shape, classes, dropout): ...

Lists, checks and error messages are made from that; nothing else has to be edited.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from thistle.experiments.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A thing, and what a list says of it."""

    thing: T
    about: str
    paper: str


class Registry(Mapping[str, T]):
    """All things of one kind, in a fixed order."""

    def __init__(
        self, kind: str, package: str = "", order: Callable[[str], Any] | None = None, listed: str = ""
    ) -> None:
        """`kind`: what one is called in an error. `package`: every module in it is imported before anybody looks.

        `order`: a sort key for names; without one they stay as they were added. A package needs one, because its
        modules are imported in no particular order. `listed`: the table of `thistle list` that shows them all.
        """
        self.kind, self.package, self.order, self.listed = kind, package, order, listed
        self._entries: dict[str, Entry[T]] = {}
        self._complete = not package

    def add(self, name: str, about: str = "", paper: str = "") -> Callable[[T], T]:
        """Enter the thing that follows. Without `about`, the first paragraph of its docstring describes it."""

        def enter(thing: T) -> T:
            known = self._entries.get(name)
            if known is not None and not _same_file(known.thing, thing):
                raise ValueError(f"{self.kind} {name!r}: already exists: {known.about}")
            self._entries[name] = Entry(thing, about or _described(thing), paper)
            return thing

        return enter

    def entries(self) -> dict[str, Entry[T]]:
        """All of them with what a list says, in order."""
        self._import_all()
        return {name: self._entries[name] for name in sorted(self._entries, key=self.order or (lambda _: 0))}

    def find(self, name: str, key: str) -> T:
        """The thing of this name, or an error that offers the nearest; `key` is the setting that has the name."""
        if name not in self:
            where = f"thistle list {self.listed}" if self.listed else ", ".join(self)
            raise UserError(f"{key} = {name!r}: no such {self.kind}; did you mean {self.nearest(name)}? ({where})")
        return self[name]

    def nearest(self, name: str) -> str:
        """The name that is spelt most like this one."""
        return difflib.get_close_matches(name.lower(), list(self), n=1, cutoff=0.0)[0]

    def __getitem__(self, name: str) -> T:
        self._import_all()
        return self._entries[name].thing

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries())

    def __len__(self) -> int:
        self._import_all()
        return len(self._entries)

    def _import_all(self) -> None:
        if self._complete:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        self._complete = True


def _described(thing: object) -> str:
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")


def _same_file(known: object, thing: object) -> bool:
    """Whether this is a class of the user's own again, after its file (mine@…) was edited."""
    one, other = (getattr(each, "__module__", "") for each in (known, thing))
    return isinstance(thing, type) and one.partition("@")[0] == other.partition("@")[0]
