"""What to tell a hospital about its part in a run: who was left out most of the time, and why, in everyday words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 0.5
"""A site that is left out in more than this share of its rounds is pointed out."""
BY_SERVER = "its updates made the shared model worse on the data that the server holds"
BY_OTHERS = "its updates were unlike those of the other sites"
WHY = {
    "loss": BY_SERVER,
    "zeno": BY_SERVER,
    "bant": BY_SERVER,
    "angle": "its updates led away from what the data at the server teach",
    "fltrust": "its updates led away from what the data at the server teach",
    "evidence": "over all rounds so far, its updates went against the data at the server and the other sites",
    "fldetector": "its updates did not follow from its earlier ones",
    "guard": "its replies were damaged or broke the rules",
}
"""By the step that left it out; any other compares a site with the others."""
WHAT_NOW = (
    "Ask the site to check its data and labels, and who has access to its computer: mislabelled or very different data "
    "look the same from here as an attack."
)


@dataclass(frozen=True)
class Finding:
    """One site that does not take part as it should."""

    site: str
    text: str
    advice: str


def findings(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """The sites of a summary that were left out, or silent, in most of their rounds."""
    sites = summary.get("sites")
    for name, said in sites.items() if isinstance(sites, Mapping) else ():
        rounds, out, silent = (_count(said, key) for key in ("rounds", "left_out", "silent"))
        if rounds and out > MOST * rounds:
            why = WHY.get(str(said.get("step")), BY_OTHERS)
            yield Finding(str(name), f"was left out in {out} of {rounds} rounds: {why}{_last(said)}.", WHAT_NOW)
        elif rounds and silent > MOST * rounds:
            text = f"did not answer in {silent} of {rounds} rounds{_last(said)}."
            yield Finding(str(name), text, "Ask the site whether its node is running and its network is up.")


def _last(said: Mapping[str, Any]) -> str:
    return f" (the last time: {reason})" if (reason := str(said.get("reason") or "")) else ""


def _count(said: Any, key: str) -> int:
    value = said.get(key) if isinstance(said, Mapping) else None
    return value if isinstance(value, int) else 0
