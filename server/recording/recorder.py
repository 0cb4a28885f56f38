"""What a run writes as it goes: one line per round in metrics.jsonl, one per client in verdicts.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from thistle.experiments.runfolder import FORMAT, RunFolder, read_lines, utc_now, write_atomically
from thistle.experiments.settings import Attack
from thistle.protocol.verdict import Verdict
from thistle.server.recording.detection import Detection
from thistle.server.recording.results import accuracies, backdoor, seconds_of_defence
from thistle.server.recording.sites import tally

Line = dict[str, Any]
LINES = json.JSONEncoder(allow_nan=False)
SUMS = ("bytes_up", "bytes_down", "accepted", "filtered", "rejected", "failed", "retried", "clipped")


class Recorder:
    """Appends and flushes a round at a time, so that a run can be watched and survives a crash."""

    def __init__(self, folder: RunFolder, after: int) -> None:
        """Keep the lines of rounds up to `after` (0: a new run), drop what a crash left behind them."""
        self.folder = folder
        for path in (folder.metrics, folder.verdicts):
            _keep(path, after)
        self.rounds = list(read_lines(folder.metrics))

    def record(self, line: dict[str, Any], verdicts: Iterable[Verdict]) -> tuple[Line, list[Line]]:
        """One round, which is over now; returns what was written: the metrics' line, and those of the verdicts."""
        time, number = utc_now(), line["round"]
        clean = _finite({"round": number, "time": time, **line})
        judged = [_finite(verdict.line(number, time)) for verdict in verdicts]
        _append(self.folder.verdicts, judged)
        _append(self.folder.metrics, [clean])
        self.rounds.append(clean)
        return clean, judged

    @property
    def lost(self) -> list[dict[str, Any]]:
        """The rounds in which the model learnt nothing."""
        return [line for line in self.rounds if "kept" in line]

    def summary(self, window: int, attack: Attack | None) -> dict[str, Any]:
        """The numbers of summary.json that the lines hold; `attack` None: nobody knows when somebody attacked."""
        seconds = [line["seconds"] for line in self.rounds]
        return {
            "format": FORMAT,
            "rounds": len(self.rounds),
            **accuracies(self.rounds, window),
            "seconds": sum(seconds),
            "seconds_per_round": median(seconds[1:] or seconds),
            "seconds_defence": seconds_of_defence(self.rounds),
            **{key: sum(line.get(key, 0) for line in self.rounds) for key in SUMS},
            "lost_rounds": len(self.lost),
            "detection": None if self.score is None else self.score.figures(),
            **({"failed_attackers": self.score.failed_attackers} if self.score and self.score.failed_attackers else {}),
            **backdoor(self.rounds, attack),
            **({"sites": sites} if (sites := tally(self.rounds)) else {}),
        }

    @property
    def score(self) -> Detection | None:
        """Over all rounds: the lines hold each round's counts. None where nobody knows the truth."""
        counts = [line["detection"] for line in self.rounds if "detection" in line]
        return None if None in counts else sum(map(Detection.of, counts), Detection())


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN: null says "not a number" to every reader."""
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


def _append(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(LINES.encode(line) + "\n" for line in lines)


def _keep(path: Path, after: int) -> None:
    kept = [json.dumps(line) + "\n" for line in read_lines(path) if line.get("round", 0) <= after]
    write_atomically(path, "".join(kept).encode())
