"""How much is tried: everything, or what a budget allows. A plan is written down, and followed after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thistle.attacks.stress.halving import rounds_of
from thistle.attacks.stress.suite import Candidate

START_UP = 1.2
"""Runs take this many times the seconds of their rounds: they must be started."""
VARIATIONS = 2
"""Of each finalist that is varied, at most."""


@dataclass(frozen=True)
class Plan:
    """What is tried, and for how long."""

    rounds: int
    pause: int
    """Short runs end after this round."""
    seeds: int
    per_kind: int | None = None
    """At most this many candidates of each kind; None: all."""
    shortened: bool = False
    """Whether a budget has made it smaller."""
    seconds_per_round: float | None = None
    """As measured before a budget was shared out."""

    def chosen(self, tried: Sequence[Candidate]) -> list[Candidate]:
        """The first candidates of each kind."""
        seen: Counter[str] = Counter()
        kept = []
        for one in tried:
            seen[one.kind] += 1
            if self.per_kind is None or seen[one.kind] <= self.per_kind:
                kept.append(one)
        return kept

    def total(self, tried: Sequence[Candidate], fractions: int) -> int:
        """Rounds at most, in all runs together."""
        chosen, total = self.chosen(tried), self.seeds * self.rounds
        for suite in {one.suite for one in chosen}:
            mine = [one.kind for one in chosen if one.suite == suite]
            sizes = len(mine), len(set(mine))
            total += fractions * rounds_of(*sizes, self.rounds, self.pause, self.seeds, VARIATIONS)
        return total

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Plan:
        return cls(**document)


def fit(whole: Plan, tried: Sequence[Candidate], fractions: int, seconds: float, jobs: int, minutes: float) -> Plan:
    """The largest plan that ends within this many minutes; the smallest if none does."""
    made = whole
    for made in _smaller(whole, tried):
        if made.total(tried, fractions) * seconds * START_UP / jobs <= 60 * minutes:
            break
    shortened = made.total(tried, fractions) < whole.total(tried, fractions)
    return Plan(**{**made.document(), "shortened": shortened, "seconds_per_round": seconds})


def _smaller(whole: Plan, tried: Sequence[Candidate]) -> Iterator[Plan]:
    """From all to least: first fewer candidates of each kind, then fewer seeds."""
    yield whole
    for most in range(max(Counter(one.kind for one in tried).values(), default=1) - 1, 0, -1):
        yield Plan(whole.rounds, whole.pause, whole.seeds, most)
    for seeds in range(whole.seeds - 1, 0, -1):
        yield Plan(whole.rounds, whole.pause, seeds, 1)
