"""The worst cases that `thistle stress` found, for the page: what stress.json says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thistle.report.reading import number, read_object


def read_stress(folder: Path, problems: list[str]) -> dict[str, Any] | None:
    """The results and every candidate; None if the folder is not a search's, or the search has not ended."""
    document = read_object(folder, "stress.json", problems)
    if not isinstance(document.get("results"), list):
        return None
    return {
        "suite": str(document.get("suite", "")),
        "strategy": str(document.get("strategy", "")),
        "no_attack": _figures(document.get("no_attack")),
        "results": _rows(document["results"]),
        "candidates": _rows(document.get("candidates")),
        "left_out": [f"{one['label']}: {one['reason']}" for one in _rows(document.get("left_out"))],
    }


def _rows(rows: Any) -> list[dict[str, Any]]:
    objects = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [{**_words(row), **_figures(row)} for row in objects]


def _words(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: str(row.get(name, "")) for name in ("suite", "label", "quote", "reason")}
    return {**texts, **{name: number(row.get(name)) for name in ("fraction", "rung", "at_pause")}}


def _figures(row: Any) -> dict[str, Any]:
    """Accuracy and success as the page's tables want them; None where they were not measured."""
    given = row if isinstance(row, Mapping) else {}
    made: dict[str, Any] = {}
    for name in ("accuracy", "success"):
        mean, seeds = number(given.get(name)), given.get(f"{name}_by_seed")
        count = len(seeds) if isinstance(seeds, list) else 0
        found = {"mean": mean, "error": number(given.get(f"{name}_error")), "seeds": count}
        made[name] = None if mean is None else found
    return made
