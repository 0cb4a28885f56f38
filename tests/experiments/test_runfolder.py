"""A run that cannot be written down is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder


def test_a_run_needs_room_for_its_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.check_room(0)
    with pytest.raises(UserError, match=r"run.out: \d+ MiB are free at .*, this run needs at least \d+"):
        folder.check_room(2**60)


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"run.out: cannot write to .*file/run: Not a directory"):
        RunFolder(tmp_path / "file" / "run").create()
