"""Apps that Flower's programs unpack are whole, even if others unpack them at the same time or die meanwhile."""

from __future__ import annotations

import inspect
import io
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.cli import install
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supernode.runtime import run_clientapp

from thistle.engines.flower_programs import flower_environment
from thistle.engines.staging import stage_app
from thistle.flower_compat import unpacking
from thistle.flower_compat.unpacking import PROGRAMS, programs, unpack_once, unpack_whole

TIMES = 100


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Our own app as Flower sends it, but with some of its files only: it is unpacked hundreds of times."""
    app = stage_app(tmp_path_factory.mktemp("staged") / "app")
    for room in ("attacks", "experiments", "strategies", "tasks"):
        shutil.rmtree(app / "thistle" / room)
    return build_fab_from_disk(app)


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own way is changed for one test only."""
    monkeypatch.setattr(install, "validate_and_install", install.validate_and_install)


def missing(bundle: bytes, app: Path) -> list[str]:
    """Files of the bundle that are not in the folder, or not whole."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        wanted = {info.filename: info.file_size for info in archive.infolist() if not info.filename.startswith(".info")}
    return [name for name, size in wanted.items() if not (app / name).is_file() or (app / name).stat().st_size != size]


def in_a_process(task: Callable[[], bool]) -> int:
    """Its id; the exit code is 0 where the task is content."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = 0 if task() else 1
        finally:
            os._exit(code)
    return child


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.timeout(900)  # 70 s at a load average of 15 on two cores
def test_two_processes_that_unpack_an_app_at_once_both_have_all_of_it(
    bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack_whole()

    def unpack(after: float) -> bool:
        time.sleep(after)
        return missing(bundle, install.install_from_fab(bundle, skip_prompt=True)) == []

    for number in range(TIMES):
        home = tmp_path / f"{number}"
        monkeypatch.setenv("FLWR_HOME", str(home))
        apart = number % 31 / 1000
        children = [in_a_process(lambda: unpack(0.0)), in_a_process(lambda wait=apart: unpack(wait))]  # type: ignore[misc]
        assert [ended_well(child) for child in children] == [True, True], f"{1000 * apart:.0f} ms apart"
        (app,) = (home / "apps").iterdir()
        assert missing(bundle, app) == []
        shutil.rmtree(home)


def test_a_process_that_dies_while_it_unpacks_leaves_no_half_app(
    bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack_whole()
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))

    def die() -> bool:
        install.shutil.copy2 = lambda *_: os._exit(9)  # type: ignore[attr-defined, assignment]
        install.install_from_fab(bundle, skip_prompt=True)
        return True

    assert not ended_well(in_a_process(die))
    assert missing(bundle, install.install_from_fab(bundle, skip_prompt=True)) == []


def test_an_app_that_is_there_is_not_unpacked_for_the_next_message(
    bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = run_clientapp
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(module, "install_from_fab", module.install_from_fab)
    assert "install_from_fab(fab.content, skip_prompt=True)" in inspect.getsource(run_clientapp)
    unpack_whole()
    unpack_once()
    app = module.install_from_fab(bundle, skip_prompt=True)
    assert missing(bundle, app) == []
    monkeypatch.setattr(install, "safe_extract_zip", lambda *_: pytest.fail("unpacked again"))
    assert module.install_from_fab(bundle, skip_prompt=True) == app


def test_flowers_superexecs_start_our_programs(tmp_path: Path) -> None:
    apps = (TaskType.SERVER_APP, TaskType.CLIENT_APP, TaskType.SIMULATION)
    assert {TASK_TYPE_TO_COMMAND[kind] for kind in apps} == set(PROGRAMS)
    environment = flower_environment(tmp_path)
    for program in PROGRAMS:
        assert shutil.which(program, path=environment["PATH"]) == str(tmp_path / "bin" / program)


def test_they_are_flowers_programs(tmp_path: Path) -> None:
    environment = flower_environment(tmp_path / "a 'home' with spaces")
    for program in PROGRAMS:
        shown = subprocess.run([program, "--help"], env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout.startswith(f"usage: {program}")


def test_they_unpack_as_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Program:
        def load(self) -> Callable[[], str]:
            return lambda: install.validate_and_install.__module__

    monkeypatch.setattr(unpacking, "entry_points", lambda **_: [Program()])
    with pytest.raises(SystemExit) as end:
        unpacking.become(PROGRAMS[0])
    assert end.value.code == "thistle.flower_compat.unpacking"


def test_the_programs_are_written_anew_where_python_is_another(tmp_path: Path) -> None:
    stale = programs(tmp_path) / PROGRAMS[0]
    stale.write_text("#!/bin/sh\nexit 3\n")
    assert "become" in (programs(tmp_path) / PROGRAMS[0]).read_text()
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {*PROGRAMS, "cold"}
