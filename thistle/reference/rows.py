"""A setting as a row of a table: key, type in words, default, meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic.fields import FieldInfo

from thistle.attacks.registry import attacks
from thistle.experiments.settings import Section, Value, dashed
from thistle.reference.words import in_words
from thistle.strategies.options import Options
from thistle.strategies.registry import Named, settings_of

COLUMNS = ["key", "type", "default", "meaning"]
FIRST_WORD = re.compile(r"[a-z]{2}|a ")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Row:
    """What there is to know of a setting, in Markdown."""

    key: str
    kind: str
    default: Value
    meaning: str

    @property
    def cells(self) -> list[str]:
        """For a document."""
        return [f"`{self.key}`", self.kind, f"`{json.dumps(self.default)}`", self.meaning]

    @property
    def plain(self) -> list[str]:
        """For a terminal."""
        return [plain(cell) for cell in self.cells]


def plain(markdown: str) -> str:
    """Without links and backticks."""
    return LINK.sub(r"\1", markdown).replace("`", "")


def rows(section: type[Section], prefix: str = "") -> list[Row]:
    """The settings of a section, but not those of the sections in it."""
    fields = section.model_fields.items()
    return [_row(prefix + dashed(name), field) for name, field in fields if not _is_section(field)]


def _row(key: str, field: FieldInfo) -> Row:
    return Row(key, in_words(field.rebuild_annotation()), field.default, sentence(field.description or ""))


def sentence(text: str) -> str:
    """On one line, with a capital letter (unless it begins with a symbol, as f or θ) and without a full stop."""
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].upper() + line[1:] if FIRST_WORD.match(line) else line


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def strategy_rows(cls: type[Named]) -> list[Row]:
    """All settings of a strategy."""
    return rows(settings_of(cls), "strategy.")


def attack_rows() -> list[Row]:
    """What single attacks have besides their strength."""
    found: dict[Row, list[str]] = {}
    for name, cls in attacks().items():
        if cls.__module__.startswith("thistle."):
            for row in rows(settings_of(cls), "attack."):
                found.setdefault(row, []).append(name)
    return [
        replace(row, meaning=f"{', '.join(names)}: {row.meaning[:1].lower()}{row.meaning[1:]}")
        for row, names in found.items()
        if row.key != "attack.strength"
    ]


def common_rows() -> list[Row]:
    """Those that every pipeline has."""
    return strategy_rows(Options)


def own_rows(cls: type[Named]) -> list[Row]:
    """What a strategy adds to the common settings, or has with another default, type or meaning."""
    common = common_rows() if issubclass(cls, Options) else []
    return [row for row in strategy_rows(cls) if row not in common]


def lacking(cls: type[Named]) -> Iterator[str]:
    """The common settings that a strategy does not have."""
    known = {row.key for row in strategy_rows(cls)}
    return (row.key for row in common_rows() if row.key not in known)
