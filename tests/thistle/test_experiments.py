"""From what a person types to an experiment: names and places."""

from __future__ import annotations

from pathlib import Path

import pytest

from thistle.experiments.errors import UserError
from thistle.running.launch import Engine, Launch
from thistle.running.prepare import make_experiment


def test_paths_are_written_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is carried out, and resumed, from other folders than the one it was started in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.ttf").write_bytes(b"")
    typed = {
        "task.name": "folder:data.tar.xz",
        "task.data-dir": "sets",
        "task.server-data": "npz:few.npz",
        "task.server-font": "own.ttf",
    }
    task = make_experiment("digits-clean", [f"{key}={value}" for key, value in typed.items()]).task
    assert task.name == f"folder:{tmp_path}/data.tar.xz"
    assert task.data_dir == f"{tmp_path}/sets"
    assert task.server_data == f"npz:{tmp_path}/few.npz"
    assert task.server_font == f"{tmp_path}/own.ttf"


def test_names_are_not_taken_for_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    experiment = make_experiment("digits-clean", ["task.server-font=DejaVuSans", "task.server-data=holdout:20"])
    assert experiment.task.name == "digits" and experiment.task.data_dir == ""
    assert experiment.task.server_font == "DejaVuSans" and experiment.task.server_data == "holdout:20"


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "..", ".", "two\nlines"])
def test_a_run_stays_in_its_folder(name: str) -> None:
    with pytest.raises(UserError, match=r"run\.name"):
        make_experiment("digits-clean", [], name=name)


def test_a_class_that_the_task_lacks_is_refused_before_the_start() -> None:
    wanted = ["attack.kind=backdoor", "attack.fraction=0.2", "attack.target=10"]
    with pytest.raises(UserError, match=r"attack\.target = 10: the task's classes are 0-9"):
        Launch(Engine.INLINE, quiet=True).check(make_experiment("digits-clean", wanted))
