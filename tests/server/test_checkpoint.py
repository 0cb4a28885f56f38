"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from thistle.server.recording.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def save(folder: Path, *numbers: int) -> None:
    for number in numbers:
        save_checkpoint(folder, Checkpoint(number, {"w": np.full((2, 1), number, np.float32)}, {"k": None}))


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000002", "round-000003"]
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.round == 3 and found.plain == {"k": None} and found.arrays["w"].tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize("broken", ["tensors.safetensors", "state.json"])
def test_a_broken_one_is_passed_over(tmp_path: Path, broken: str) -> None:
    save(tmp_path, 1, 2)
    path = tmp_path / "round-000002" / broken
    path.write_bytes(path.read_bytes()[:-5])
    found = load_checkpoint(tmp_path)
    assert found is not None and found.round == 1


def test_a_missing_file_and_a_half_written_folder_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "round-000002").mkdir()
    (tmp_path / ".writing-1").mkdir()
    found = load_checkpoint(tmp_path)
    assert found is not None and found.round == 1


def test_there_may_be_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "nowhere") is None
