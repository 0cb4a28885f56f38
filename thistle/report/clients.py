"""Each client's outcome in every round: verdicts.jsonl as columns, and from them the map and the scores."""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thistle.report.reading import inside, is_id, number, parse_line, read_object

CODES = {"accepted": 1, "filtered": 2, "rejected": 3, "failed": 4}
FAINT = 5
"""A cell of the map; 0: not asked in that round, 5: accepted, but with almost no weight."""
CELLS = 2_000_000
"""Cells of the map at most: a browser draws that many in a second."""
DETAILED = 250_000
"""Cells up to which each one carries its score."""
NOTES = 255
"""How many different reasons are distinguished."""
BINS = 40


class VerdictLog:
    """The lines of verdicts.jsonl as columns; `update` reads what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start()

    def _start(self) -> None:
        self.position, self.file_id, self.damaged = 0, -1, 0
        self.rounds, self.clients = array("q"), array("q")
        self.codes, self.reasons = array("B"), array("B")
        self.scores, self.thresholds = array("d"), array("d")
        self.notes: dict[str, int] = {"": 0}
        self.sites: dict[int, str] = {}

    def update(self) -> None:
        """Read to the last whole line; from the start if a resumed run has rewritten the file."""
        path = inside(self.folder, "verdicts.jsonl")
        if path is None:
            return
        with path.open("rb") as file:
            now = path.stat()
            if now.st_ino != self.file_id or now.st_size < self.position:
                self._start()
                self.file_id = now.st_ino
            file.seek(self.position)
            for text in file:
                if not text.endswith(b"\n"):
                    break
                self.position += len(text)
                self._take(parse_line(text))

    def _take(self, line: dict[str, Any] | None) -> None:
        code = CODES.get(str(line.get("verdict"))) if line else None
        if line is None or code is None or not is_id(line.get("client")):
            self.damaged += 1
            return
        if line["verdict"] == "accepted" and line.get("step"):
            code = FAINT
        self.rounds.append(line["round"])
        self.clients.append(line["client"])
        self.codes.append(code)
        for column, name in ((self.scores, "score"), (self.thresholds, "threshold")):
            value = number(line.get(name))
            column.append(np.nan if value is None else value)
        self.reasons.append(self._note(line))
        if isinstance(line.get("site"), str):
            self.sites[line["client"]] = line["site"][:200]

    def _note(self, line: Mapping[str, Any]) -> int:
        """Who did it, and why; of a strategy's reasons, most of which hold numbers, no two are the same."""
        said = line.get("reason") if line["verdict"] in ("rejected", "failed") else ""
        text = ": ".join(str(part)[:200] for part in (line.get("step"), said) if part)
        if text not in self.notes and len(self.notes) >= NOTES:
            text = "another reason (see verdicts.jsonl)"
        return self.notes.setdefault(text, len(self.notes))


@dataclass(frozen=True)
class Truth:
    """Who attacked, and in which rounds; unknown until a run has ended, and always if real nodes took part."""

    malicious: frozenset[int]
    start: int = 1
    stop: int = 0
    period: int = 0

    @classmethod
    def read(cls, folder: Path) -> Truth | None:
        value = read_object(folder, "truth.json", [])
        ids = value.get("malicious")
        if not isinstance(ids, list):
            return None
        when = {name: value[name] for name in ("start", "stop", "period") if is_id(value.get(name))}
        return cls(frozenset(filter(is_id, ids)), **when)

    def attacks(self, clients: np.ndarray, rounds: np.ndarray) -> np.ndarray:
        """Whether each of these replies was an attack."""
        on = (rounds >= self.start) & ((rounds <= self.stop) if self.stop else True)
        if self.period:
            on &= (rounds - self.start) // self.period % 2 == 0
        return np.isin(clients, list(self.malicious)) & on


def pack(values: np.ndarray) -> str:
    """Bytes for the page, compressed: a map is mostly the same colour."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 6)).decode()


def client_map(log: VerdictLog, truth: Truth | None) -> dict[str, Any]:
    """Clients over rounds, and the scores of honest and malicious replies, as the page wants them."""
    rounds, clients = (np.frombuffer(one, np.int64) for one in (log.rounds, log.clients))
    scores = np.frombuffer(log.scores)
    columns, seen = np.unique(rounds), np.unique(clients)
    shown = _chosen(seen, truth, max(50, CELLS // max(1, len(columns))))
    here = np.isin(clients, shown)
    place = (np.searchsorted(shown, clients[here]), np.searchsorted(columns, rounds[here]))

    def grid(values: np.ndarray, empty: float) -> str:
        cells = np.full((len(shown), len(columns)), empty, values.dtype)
        cells[place] = values[here]
        return pack(cells)

    attacked = truth.attacks(clients, rounds) if truth else np.zeros(len(clients), bool)
    detailed = len(shown) * len(columns) <= DETAILED and bool(np.isfinite(scores).any())
    return {
        "rounds": columns.tolist(),
        "clients": shown.tolist(),
        "sites": [log.sites.get(int(client)) for client in shown] if log.sites else None,
        "total": len(seen),
        "damaged": log.damaged,
        "malicious": sorted(truth.malicious) if truth else None,
        "attacks": grid(attacked.astype(np.uint8), 0),
        "cells": grid(np.frombuffer(log.codes, np.uint8), 0),
        "reasons": grid(np.frombuffer(log.reasons, np.uint8), 0),
        "notes": list(log.notes),
        "scores": grid(scores.astype(np.float32), np.nan) if detailed else None,
        "thresholds": grid(np.frombuffer(log.thresholds).astype(np.float32), np.nan) if detailed else None,
        "distribution": distribution(log, truth),
    }


def _chosen(seen: np.ndarray, truth: Truth | None, most: int) -> np.ndarray:
    """All clients, or as many as fit: half of the places for malicious ones, spread evenly over their ids."""
    if len(seen) <= most:
        return seen
    bad = np.isin(seen, list(truth.malicious if truth else ()))
    few = _spread(seen[bad], most // 2)
    return np.sort(np.concatenate([few, _spread(seen[~bad], most - len(few))]))


def _spread(ids: np.ndarray, most: int) -> np.ndarray:
    return ids if len(ids) <= most else ids[np.linspace(0, len(ids) - 1, most).astype(int)]


def distribution(log: VerdictLog, truth: Truth | None) -> dict[str, Any] | None:
    """Histogram of the scores and their spread in each round, by honest and malicious; all in one before the truth."""
    finite = np.isfinite(np.frombuffer(log.scores))
    if not finite.any():
        return None
    rounds, clients = (np.frombuffer(one, np.int64)[finite] for one in (log.rounds, log.clients))
    scores = np.frombuffer(log.scores)[finite]
    low, high = np.quantile(scores, [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    if truth is None:
        groups = {"all": np.ones(len(scores), bool)}
    else:
        attacked = truth.attacks(clients, rounds)
        groups = {"honest": ~attacked, "malicious": attacked}
    return {
        "edges": edges.tolist(),
        "groups": {name: _group(rounds[own], scores[own], edges) for name, own in groups.items() if own.any()},
        "threshold": _threshold(log),
    }


def _threshold(log: VerdictLog) -> dict[str, Any] | None:
    """Where filters cut the scores, the median of each round and of all, and which side they kept."""
    scores, thresholds = np.frombuffer(log.scores), np.frombuffer(log.thresholds)
    known = np.isfinite(scores) & np.isfinite(thresholds)
    if not known.any():
        return None
    numbers, parts = _by_round(np.frombuffer(log.rounds, np.int64)[known], thresholds[known])
    out = np.frombuffer(log.codes, np.uint8)[known] == CODES["filtered"]
    above = scores[known] >= thresholds[known]
    return {
        "rounds": numbers,
        "middle": [float(np.median(part)) for part in parts],
        "typical": float(np.median(thresholds[known])),
        "keeps": "above" if np.sum(above != out) >= len(out) / 2 else "below",
    }


def _by_round(rounds: np.ndarray, values: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    order = np.argsort(rounds, kind="stable")
    numbers, starts = np.unique(rounds[order], return_index=True)
    return numbers.tolist(), np.split(values[order], starts[1:])


def _group(rounds: np.ndarray, scores: np.ndarray, edges: np.ndarray) -> dict[str, Any]:
    counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
    numbers, parts = _by_round(rounds, scores)
    spread = np.array([np.quantile(part, [0.1, 0.5, 0.9]) for part in parts])
    return {
        "replies": len(scores),
        "shares": (counts / len(scores)).tolist(),
        "rounds": numbers,
        **{name: spread[:, i].tolist() for i, name in enumerate(("low", "middle", "high"))},
    }
