"""The wheel: one top-level package, the whole app inside it, and the same code in it as in the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from tests.federations import model_sha, rounds
from tests.thistle.test_cli import thistle
from thistle.experiments.plugins import ROOMS
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.prepare import preset_names
from thistle.server.recording.environment import app_hash

ROOT = Path(__file__).resolve().parents[2]
STAGE = """
import json, sys, thistle.cli
from pathlib import Path
import thistle.protocol
from thistle.server.recording.environment import app_hash
from thistle.prepare import preset_names
from thistle.staging import stage_app
stage_app(Path(sys.argv[1]))
print(json.dumps({"hash": app_hash(), "protocol": thistle.protocol.__file__, "presets": preset_names()}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, without fetching anything."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a site-packages would hold after the installation."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def sources(root: Path, package: Path) -> dict[str, bytes]:
    """The app's files by their paths: the rooms, and what is inside the package."""
    folders = [*(root / room for room in ROOMS), package / "flower_compat"]
    files = {path: folder.parent for folder in folders for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(at)): path.read_bytes() for path, at in files.items() if path.suffix != ".pyc"}


def test_only_thistle_is_at_the_top(unpacked: Path) -> None:
    packages = {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"}
    assert packages == {"thistle"}


def test_the_whole_app_is_inside(unpacked: Path) -> None:
    app = unpacked / "thistle"
    assert sources(app, app) == sources(ROOT, ROOT / "thistle")
    assert (app / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()


def test_an_installed_thistle_stages_and_hashes_what_the_checkout_holds(unpacked: Path, tmp_path: Path) -> None:
    for name in ("server", "protocol"):  # a user's own modules of these names are in nobody's way
        (tmp_path / f"{name}.py").write_text("raise ImportError('not this one')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(unpacked)])}
    command = [sys.executable, "-c", STAGE, "staged"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, staged = json.loads(done.stdout), tmp_path / "staged"
    assert found["protocol"] == str(unpacked / "thistle" / "protocol" / "__init__.py")
    assert found["hash"] == app_hash()
    assert found["presets"] == preset_names() != []
    assert sources(staged / "thistle", staged / "thistle") == sources(ROOT, ROOT / "thistle")
    assert build_fab_from_disk(staged), "Flower accepts it"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_clean_installation_runs_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    home, work = tmp_path / "venv", tmp_path / "elsewhere"
    work.mkdir()
    for name in ("client", "server"):
        (work / f"{name}.py").write_text("raise ImportError('the user has a module of this name')")
    venv.create(home, with_pip=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def call(*command: str) -> str:
        done = subprocess.run(
            [str(home / "bin" / command[0]), *command[1:]],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[all]")
    listed = call("pip", "show", "-f", "thistle-fl").partition("Files:")[2].split()
    tops = {name.split("/")[0] for name in listed if not name.startswith("..")}  # ../../../bin/thistle
    assert {top for top in tops if not top.endswith(".dist-info")} == {"thistle"}

    three = ["--set", "rounds=3"]
    assert "final accuracy" in call("thistle", "run", "digits-clean", "--engine", "inline", *three, "--name", "inline")
    assert "final accuracy" in call("thistle", "run", "digits-clean", *three, "--name", "ray")
    inline, ray = RunFolder(work / "runs" / "inline"), RunFolder(work / "runs" / "ray")
    assert len(rounds(inline)) == len(rounds(ray)) == 3

    here = thistle("run", "digits-clean", "--engine", "inline", *three, "--out", str(tmp_path / "checkout"))
    assert here.returncode == 0, here.stderr
    checkout = RunFolder(tmp_path / "checkout" / "digits-clean")
    assert model_sha(inline) == model_sha(ray) == model_sha(checkout)
    assert {read_json(folder.environment)["app_sha256"] for folder in (inline, ray, checkout)} == {app_hash()}
