"""What a deployed run says of its sites: each one's outcome in a round, and what all rounds together say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thistle.protocol.verdict import Verdict

Line = Mapping[str, Any]
EXCLUDED = ("filtered", "rejected", "faint")
"""Replies that came, and hardly count or not at all."""


def outcomes(verdicts: Iterable[Verdict]) -> dict[str, dict[str, dict[str, Any]]]:
    """One round for metrics.jsonl, {"sites": …}: how many of a site's clients had which verdict, and why the first of
    its excluded replies was excluded. Empty in a simulation, which has no sites."""
    found: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        if verdict.site is None:
            continue
        site = found.setdefault(verdict.site, {})
        kind = "faint" if verdict.verdict == "accepted" and not verdict.mattered else verdict.verdict
        site[kind] = site.get(kind, 0) + 1
        if kind != "accepted":
            site.setdefault("step", verdict.step)
            site.setdefault("reason", verdict.reason)
    return {"sites": found} if found else {}


def tally(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """All rounds for summary.json, by site.

    A round counts as `left_out` where more of the site's replies were excluded than were used, as `silent` where none
    came. `step` is who excluded it most often, `reason` what that one said last.
    """
    by_site: dict[str, list[Line]] = {}
    for line in lines:
        sites = line.get("sites")
        for name, outcome in sites.items() if isinstance(sites, Mapping) else ():
            by_site.setdefault(str(name), []).append(outcome)
    return {name: _one(rounds) for name, rounds in by_site.items()}


def _one(rounds: Sequence[Line]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for outcome in rounds:
        counts.update({kind: outcome[kind] for kind in ("accepted", *EXCLUDED, "failed") if kind in outcome})
    out = [one for one in rounds if is_left_out(one)]
    silent = [one for one in rounds if is_silent(one)]
    told = out or silent
    step = Counter(one.get("step", "") for one in told).most_common(1)[0][0] if told else ""
    reason = next((one.get("reason", "") for one in reversed(told) if one.get("step", "") == step), "")
    return {
        "rounds": len(rounds),
        "left_out": len(out),
        "silent": len(silent),
        **{kind: counts[kind] for kind in ("accepted", *EXCLUDED, "failed")},
        "step": step,
        "reason": reason,
    }


def is_left_out(outcome: Line) -> bool:
    """Whether the site's work was not used in this round."""
    return sum(outcome.get(kind, 0) for kind in EXCLUDED) > outcome.get("accepted", 0)


def is_silent(outcome: Line) -> bool:
    """Whether nothing came of it."""
    return "failed" in outcome and not any(outcome.get(kind) for kind in ("accepted", *EXCLUDED))
