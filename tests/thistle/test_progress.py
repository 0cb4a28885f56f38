"""The live line about a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from thistle.experiments.runfolder import RunFolder
from thistle.terminal import progress
from thistle.terminal.progress import RunProgress, Tail, verdict_counts


def line(number: int, **more: Any) -> str:
    counts = {"accepted": 10, "filtered": 0, "rejected": 0, "failed": 0}
    return json.dumps({"round": number, "seconds": 0.25, **counts, **more}) + "\n"


def test_only_whole_lines_are_read(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "file")
    assert tail.lines() == []
    (tmp_path / "file").write_text("one\ntw")
    assert tail.lines() == ["one"]
    (tmp_path / "file").write_text("one\ntwo\n")
    assert tail.lines() == ["two"]


def test_words_where_there_is_room_for_them() -> None:
    counts = {"accepted": 7, "filtered": 2, "rejected": 0, "failed": 1}
    assert verdict_counts(counts, wide=True) == "7 accepted, 2 filtered, 1 failed"
    assert verdict_counts(counts, wide=False) == "7✓ 2⊘ 0✗ 1†"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_leaves_room_for_an_echoed_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, height=24, highlight=False)
    monkeypatch.setattr(progress, "messages", screen)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    folder = RunFolder(tmp_path / "a-run-with-a-rather-long-name")
    folder.path.mkdir()
    folder.metrics.write_text(line(1, accuracy=0.5))
    with RunProgress(folder, 60, quiet=False) as shown:
        assert (shown.done, shown.accuracy) == (1, 0.5), "a resumed run begins where it was"
        folder.metrics.write_text(line(1, accuracy=0.5) + line(2) + '{"cut off')
        shown.update()
        assert shown.done == 2
        rendered = Console(width=width).render_lines(shown._bar.get_renderable(), pad=False)
    assert len(rendered) == 1
    assert sum(segment.cell_length for segment in rendered[0]) <= width - 3
