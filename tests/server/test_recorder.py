"""metrics.jsonl after a crash: no gaps, duplicates or half lines."""

from __future__ import annotations

import json
from pathlib import Path

from thistle.experiments.runfolder import RunFolder, read_lines
from thistle.protocol.verdict import Verdict
from thistle.server.recording.recorder import Recorder

LINE = {"seconds": 1.0, "bytes_up": 1, "bytes_down": 2, "accepted": 1, "filtered": 0, "rejected": 0, "failed": 0}


def test_rounds_after_the_checkpoint_and_torn_lines_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = Recorder(folder, 0)
    for number in (1, 2, 3):
        recorder.record({"round": number, **LINE, "accuracy": number / 10}, [Verdict(7, "accepted")])
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "sec')
    again = Recorder(folder, 2)
    again.record({"round": 3, **LINE, "accuracy": 0.5}, [Verdict(7, "rejected", reason="shape")])
    assert [line["round"] for line in read_lines(folder.metrics)] == [1, 2, 3]
    assert [line["round"] for line in read_lines(folder.verdicts)] == [1, 2, 3]
    summary = again.summary(2, None)
    assert (summary["last_accuracy"], summary["max_accuracy"], summary["final_accuracy"]) == (0.5, 0.5, 0.5)
    assert summary["bytes_down"] == 6


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    verdict = Verdict(7, "accepted", score=float("-inf"), weight=float("nan"))
    Recorder(folder, 0).record({"round": 1, **LINE, "loss": float("nan")}, [verdict])
    assert json.loads(folder.metrics.read_text())["loss"] is None
    line = json.loads(folder.verdicts.read_text())
    assert (line["score"], line["weight"]) == (None, None)
