"""Bring your own: `module:factory` where a task, model, attack or strategy is named.

The module is a file of the user's, or anything installed. Before a run its file is pinned: `mine:net` becomes
`mine:net@` and sixteen digits of the SHA-256 of mine.py, and the file goes with the run folder and with the Flower app.
So a name means the same code on every host, in every cache, and after the original was edited.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from thistle.experiments.errors import UserError
from thistle.protocol.text import last_line

NAMES = ("task.name", "model.name", "attack.kind", "strategy.name")
"""The settings that may name a factory."""
ROOMS = ("protocol", "experiments", "tasks", "attacks", "strategies", "client", "server")
TAKEN = "thistle"
FORMS = ("folder", "npz", "csv", "parquet")
"""What may stand before a path, and so is no module: the forms of data of the user's own."""
APP = Path(__file__).resolve().parent.parent
"""The folder that holds the rooms, and the Flower app's pyproject.toml."""
STAGED = "own"
"""The folder of a staged app with pinned files: own/<digits>/mine.py."""

_FORM = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<factory>[^\W\d]\w*)(@(?P<digits>[0-9a-f]{16}))?")
_files: dict[str, tuple[Path, bytes]] = {}
"""Pinned files that this process knows, by their digits: where each was found, and its content."""


@dataclass(frozen=True)
class Own:
    """A name taken apart; without digits the module is an installed one."""

    module: str
    factory: str
    digits: str

    @property
    def file(self) -> str:
        return f"{self.module}.py"

    def __str__(self) -> str:
        return f"{self.module}:{self.factory}" + (f"@{self.digits}" if self.digits else "")


def is_own(name: str) -> bool:
    """Whether this names a factory of the user's."""
    module, colon, _ = name.partition(":")
    return bool(colon) and module not in FORMS


def parse_own(name: str, key: str) -> Own:
    """The name's parts; `key` is the setting that has it."""
    found = _FORM.fullmatch(name)
    if found is None:
        others = f" (or {', '.join(f'{form}:PATH' for form in FORMS)})" if key == "task.name" else ""
        raise UserError(
            f"{key} = {name!r}: should be module:factory, such as mine:make for the function make in mine.py{others}"
        )
    own = Own(found["module"], found["factory"], found["digits"] or "")
    if own.module.partition(".")[0] == TAKEN:
        raise UserError(f"{key} = {name!r}: {own.module} is one of Thistle's modules; rename yours")
    return own


def pin(flat: Mapping[str, Any], folders: Iterable[Path]) -> dict[str, Any]:
    """The keys with every own name pinned to its file in the first of these folders that has it."""
    keys = dict(flat)
    places = list(folders)
    for key in NAMES:
        name = keys.get(key)
        if isinstance(name, str) and is_own(name):
            keys[key] = str(_pinned(parse_own(name, key), key, places))
    return keys


def _pinned(own: Own, key: str, folders: list[Path]) -> Own:
    for path in (folder / own.file for folder in folders):
        if not path.is_file():
            continue
        digits = _learn(path, f"{key} = {str(own)!r}")
        if own.digits in ("", digits):
            return Own(own.module, own.factory, digits)
    if own.digits and own.digits not in _files:
        raise UserError(
            f"{key} = {str(own)!r}: no {own.file} with this content in {' or '.join(map(str, folders))}; "
            f"for the file as it is now write {own.module}:{own.factory}"
        )
    return own


def _learn(path: Path, who: str) -> str:
    """Remember a file's content by its digits."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{who}: cannot read {path}: {error.strerror}") from None
    digits = hashlib.sha256(content).hexdigest()[:16]
    _files.setdefault(digits, (path.absolute(), content))
    return digits


def use_code(folder: Path) -> None:
    """Let pinned names find the files of this folder."""
    for path in sorted(folder.glob("*.py")):
        _learn(path, str(folder))


def pinned_files(flat: Mapping[str, Any]) -> dict[tuple[str, str], bytes]:
    """(digits, file name) → content, for all files that an experiment's keys are pinned to."""
    owns = {key: parse_own(str(flat[key]), key) for key in NAMES if is_own(str(flat[key]))}
    return {(own.digits, own.file): _find(own, key)[1] for key, own in owns.items() if own.digits}


def _find(own: Own, key: str) -> tuple[Path, bytes]:
    staged = APP / STAGED / own.digits / own.file
    if own.digits not in _files and staged.is_file():
        _learn(staged, key)
    if own.digits not in _files:
        raise UserError(f"{key} = {str(own)!r}: there is no {own.file} with this content on this host")
    return _files[own.digits]


def load_own(name: str, key: str) -> Callable[..., Any]:
    """The factory that the name means."""
    own = parse_own(name, key)
    try:
        module = _import_file(own.module, *_find(own, key)) if own.digits else importlib.import_module(own.module)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if own.digits or not error.name or not f"{own.module}.".startswith(f"{error.name}."):
            raise UserError(explain(name, key, "cannot be imported", error)) from None
        where = f"no file {own.file} beside the experiment, and " if "." not in own.module else ""
        raise UserError(f"{key} = {name!r}: there is {where}no installed module {own.module}") from None
    except (Exception, SystemExit) as error:
        raise UserError(explain(name, key, "cannot be imported", error)) from None
    factory = getattr(module, own.factory, None)
    if factory is None:
        raise UserError(f"{key} = {name!r}: {own.module} has no {own.factory}")
    if not callable(factory):
        raise UserError(f"{key} = {name!r}: {own.factory} is a {type(factory).__name__}, not a function")
    return factory  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _import_file(name: str, path: Path, content: bytes) -> ModuleType:
    """A module of just this content: nothing is cached on disk, and no installed one of that name is in its way."""
    unique = f"{name}@{hashlib.sha256(content).hexdigest()[:16]}"
    module = ModuleType(unique)
    module.__file__ = str(path)
    sys.modules[unique] = module  # dataclasses and typing look classes' modules up
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def make_own(name: str, key: str, *arguments: Any) -> Any:
    """What the factory makes of these arguments; whatever goes wrong in it is said in one line."""
    factory = load_own(name, key)
    try:
        return factory(*arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(explain(name, key, "failed", error)) from None


def wrong_result(name: str, key: str, wanted: str, made: object) -> UserError:
    """The error for a factory that made something else."""
    return UserError(f"{key} = {name!r}: should make {wanted}, not {type(made).__name__}")


def explain(name: str, key: str, what: str, error: BaseException) -> str:
    """With the last line of the user's own that was being carried out."""
    file = parse_own(name, key).module.rpartition(".")[2] + ".py"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == file]
    where = f" ({file}, line {lines[-1]})" if lines else ""
    return f"{key} = {name!r}: {what}: {last_line(f'{type(error).__name__}: {error}')}{where}"


def content_of(name: str, key: str) -> str:
    """What identifies the code behind the name: its digits, or those of the installed module's file."""
    own = parse_own(name, key)
    if own.digits:
        return own.digits
    load_own(name, key)
    file = sys.modules[own.module].__file__
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
