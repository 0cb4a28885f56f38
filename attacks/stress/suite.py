"""The suite: every registered attack, at the settings at which it says that it should be tried.

An attack says so where it is written: `tried` of a setting lists its values, `suite` of `@attack` names the suite.
What is tried is every value with every other. The suite has a version: results are quoted with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

from thistle.attacks.registry import KNOWLEDGE, PoisoningAttack, Suite, attacks, settings_of
from thistle.experiments.choices import TRIED
from thistle.experiments.settings import Value, dashed

VERSION = "stress-1"
"""Raised when numbers of the old and of the new suite should not be compared."""
SUITES: dict[str, tuple[Suite, ...]] = {
    "standard": ("standard",),
    "backdoor": ("backdoor",),
    "all": ("standard", "backdoor"),
}
JITTER = 0.1
"""The share of noise in colluders' updates that are not to be found by their being the same."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An attack with settings to try."""

    kind: str
    suite: Suite
    settings: tuple[tuple[str, Value], ...] = ()
    """What differs from its defaults, by the experiment's keys."""

    @property
    def keys(self) -> dict[str, Value]:
        """The settings that an experiment needs for this attack."""
        return {"attack.kind": self.kind, **dict(self.settings)}

    @property
    def words(self) -> str:
        """Its settings as people write them; empty: the defaults."""
        return ", ".join(_words(key.removeprefix("attack."), value) for key, value in self.settings)

    @property
    def label(self) -> str:
        return ", ".join(filter(None, [self.kind, self.words]))

    def but(self, changes: Mapping[str, Value]) -> Candidate:
        """The same with other settings."""
        return dataclasses.replace(self, settings=tuple({**dict(self.settings), **changes}.items()))


def candidates(suite: str) -> list[Candidate]:
    """All that a suite of SUITES tries, kind by kind, each kind's most important settings first.

    An attack that `needs` something of the user's, such as a folder of images, is in no suite.
    """
    kinds = [cls for goal in SUITES[suite] for cls in attacks().values() if cls.suite == goal and not cls.needs]
    return [Candidate(cls.name, cls.suite, point) for cls in kinds for point in _points(cls)]


def digest(tried: Sequence[Candidate]) -> str:
    """Eight digits of the hash of what is tried: the same wherever the same is tried."""
    plain = [[one.kind, one.suite, *map(list, one.settings)] for one in tried]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:8]


def variations(candidate: Candidate, rounds: int) -> list[Candidate]:
    """The ways in which a strong attack may be stronger still: colluders that differ, attackers that sleep at first."""
    changes: list[dict[str, Value]] = []
    if "jitter" in settings_of(attacks()[candidate.kind]).model_fields:
        changes.append({"attack.jitter": JITTER})
    if rounds > 1:
        changes.append({"attack.start": rounds // 2 + 1})
    return [candidate.but(change) for change in changes]


def _points(cls: type[PoisoningAttack]) -> Iterator[tuple[tuple[str, Value], ...]]:
    """Every value of every setting that is tried; who must know honest clients does."""
    fields = [field for field in dataclasses.fields(cls) if field.metadata.get(TRIED)]  # type: ignore[arg-type]
    axes = [[(f"attack.{dashed(field.name)}", value) for value in field.metadata[TRIED]] for field in fields]
    knows_all = KNOWLEDGE.index(cls.knows) >= KNOWLEDGE.index("honest clients")
    for point in itertools.product(*axes):
        given = [(key, value) for key, value in point if value != "default"]
        yield (*given, *([("attack.omniscient", True)] if knows_all else []))


def _words(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
