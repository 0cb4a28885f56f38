"""Successive halving: everybody gets a short run, the most harmful half a full one, the worst of those all seeds.

Pure: from scores, where lower is worse for the defence, to who goes on. Short runs mislead, so the first cut spares
each kind's most harmful candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
SHORT, HALF, THIRD = 3, 2, 3
FINALISTS = 3
"""At least this many get all seeds; and this many are tried with variations."""


@dataclass(frozen=True)
class Tried(Generic[T]):
    """A candidate that has been tried."""

    candidate: T
    kind: str
    score: float
    """Lower is worse for the defence."""


def pause(rounds: int, every: int) -> int:
    """The round after which short runs are compared: about a third of all, and one that is evaluated anyway.

    All rounds where no earlier one is evaluated.
    """
    third = max(1, round(rounds / SHORT / every)) * every
    return min(third, rounds)


def rank(tried: Sequence[Tried[T]]) -> list[Tried[T]]:
    """The most harmful first; of equals the one that was named first."""
    return sorted(tried, key=lambda one: one.score)


def after_short_runs(tried: Sequence[Tried[T]]) -> list[Tried[T]]:
    """The more harmful half, and of every kind at least one; the most harmful first."""
    order = rank(tried)
    firsts = {one.kind: number for number, one in reversed(list(enumerate(order)))}
    spared = set(firsts.values())
    others = [number for number in range(len(order)) if number not in spared]
    room = first_cut(len(tried), len(spared)) - len(spared)
    return [order[number] for number in sorted(spared | set(others[:room]))]


def after_full_runs(tried: Sequence[Tried[T]]) -> list[Tried[T]]:
    """The most harmful third, and at least three."""
    return rank(tried)[: second_cut(len(tried))]


def first_cut(count: int, kinds: int) -> int:
    """How many go on after short runs."""
    return max(math.ceil(count / HALF), kinds)


def second_cut(count: int) -> int:
    """How many of those go on to all seeds."""
    return min(count, max(FINALISTS, math.ceil(count / THIRD)))


def rounds_of(count: int, kinds: int, rounds: int, short: int, seeds: int, extra: int) -> int:
    """The rounds that the whole search trains for; `extra`: variations of each finalist that is varied."""
    full = first_cut(count, kinds)
    varied = min(FINALISTS, second_cut(full)) * extra
    return count * short + full * (rounds - short) + second_cut(full) * (seeds - 1) * rounds + varied * seeds * rounds
