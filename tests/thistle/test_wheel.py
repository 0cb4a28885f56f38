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
from thistle.running.prepare import preset_names
from thistle.server.recording.environment import app_hash

ROOT = Path(__file__).resolve().parents[2]
STAGE = """
import json, sys, thistle.cli
from pathlib import Path
import thistle.protocol
from thistle.server.recording.environment import app_hash
from thistle.running.prepare import preset_names
from thistle.engines.staging import stage_app
stage_app(Path(sys.argv[1]))
print(json.dumps({"hash": app_hash(), "protocol": thistle.protocol.__file__, "presets": preset_names()}))
"""

USERS_OWN = ("server", "client", "tasks", "strategies", "attacks")
"""Modules of the user's that have the names of rooms: files, and the last two folders."""
THEIRS = """
import attacks, client, server, strategies, tasks
from attacks.mine import MINE
from strategies.mine import MINE
"""
OURS = """
import thistle
from thistle import *
from thistle.strategies import CalFAT, DSVD, FedAvg, GeometricMedian, Krum, Pipeline, RoFSL, setting, strategy
from thistle.strategies.aggregators import geometric_median, krum
from thistle.client.mods import poison, poison_batches
from thistle.attacks.evasion import bim, cw, fgsm, pgd
"""
BOTH_WORK = """
import json, sys
from pathlib import Path
run = thistle.run("digits-clean", {"rounds": 2, "strategy.name": "rfa"}, engine="inline", name="mine", progress=False)
loaded = thistle.load("mine")
import attacks, client, server, strategies, tasks
own = [module.MINE for module in (server, client, tasks, strategies.mine, attacks.mine)]
rooms = [sys.modules[f"thistle.{name}"].__file__ for name in ("server", "client", "tasks", "strategies", "attacks")]
print(json.dumps({
    "own": own, "rooms": rooms, "strategy": RoFSL.__module__, "rounds": len(run.metrics),
    "same": run.summary["model_sha256"] == loaded.summary["model_sha256"],
}))
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
    for name in ("server", "protocol"):  # a user's own modules may have these names
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


def write_users_own(folder: Path) -> None:
    """Modules with the names of our rooms."""
    for name in USERS_OWN[:3]:
        (folder / f"{name}.py").write_text(f"MINE = {name!r}\n")
    for name in USERS_OWN[3:]:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "mine.py").write_text(f"MINE = {name!r}\n")


def check_both_work(python: Path, folder: Path, first: str, second: str) -> None:
    """Ours and the user's modules of the same names in one process, imported in this order."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), "-c", first + second + BOTH_WORK]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["own"] == list(USERS_OWN)
    home = python.parents[1]
    assert all(Path(path).is_relative_to(home) for path in found["rooms"]), "from the wheel, not from the checkout"
    assert found["strategy"] == "thistle.strategies.rofsl"
    assert found["rounds"] == 2 and found["same"]


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "theirs-first"])
def test_a_users_modules_of_the_same_names(wheel: Path, tmp_path: Path, ours_first: bool) -> None:
    """In an environment that has the wheel, and borrows everything else from this one."""
    home, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    write_users_own(work)
    venv.create(home, with_pip=False)
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    borrowed = [path for path in sys.path if path.endswith("site-packages")]  # whose own .pth files are not followed
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    check_both_work(home / "bin" / "python", work, *((OURS, THEIRS) if ours_first else (THEIRS, OURS)))


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

    for name, order in {"ours-first": (OURS, THEIRS), "theirs-first": (THEIRS, OURS)}.items():
        folder = tmp_path / name
        folder.mkdir()
        write_users_own(folder)
        check_both_work(home / "bin" / "python", folder, *order)

    three = ["--set", "rounds=3"]
    assert "last accuracy" in call("thistle", "run", "digits-clean", "--engine", "inline", *three, "--name", "inline")
    assert "last accuracy" in call("thistle", "run", "digits-clean", *three, "--name", "ray")
    inline, ray = RunFolder(work / "runs" / "inline"), RunFolder(work / "runs" / "ray")
    assert len(rounds(inline)) == len(rounds(ray)) == 3

    here = thistle("run", "digits-clean", "--engine", "inline", *three, "--out", str(tmp_path / "checkout"))
    assert here.returncode == 0, here.stderr
    checkout = RunFolder(tmp_path / "checkout" / "digits-clean")
    assert model_sha(inline) == model_sha(ray) == model_sha(checkout)
    assert {read_json(folder.environment)["app_sha256"] for folder in (inline, ray, checkout)} == {app_hash()}
