"""examples/flower-quickstart: a stock app, and what a few lines of Thistle do to it."""

from __future__ import annotations

import importlib
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tomli_w
import torch
from torch import Tensor

from benchmarks.superlink import PrivateSuperLink

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "flower-quickstart"
DIFFS = sorted(path.stem for path in EXAMPLE.glob("*.diff"))
MOST_LINES = 6


def with_diffs(folder: Path, *names: str) -> Path:
    """A copy of the app with these diffs applied."""
    app = folder / "-".join(("app", *names))
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__", "*.pt"))
    for name in names:
        subprocess.run(["git", "apply", "--unidiff-zero", f"{name}.diff"], cwd=app, check=True)
    return app


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("quickstart.task")
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", DIFFS)
def test_a_diff_is_small_fits_and_is_in_the_docs(name: str, tmp_path: Path) -> None:
    text = (EXAMPLE / f"{name}.diff").read_text(encoding="utf-8")
    changed = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert 0 < len(changed) <= MOST_LINES
    with_diffs(tmp_path, name)
    document = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    assert all(line in document.splitlines() for line in changed)


def test_the_stock_app_knows_nothing_of_thistle() -> None:
    assert DIFFS == ["guarded", "malicious", "rofsl"]
    for path in (EXAMPLE / "quickstart").glob("*.py"):
        assert "thistle" not in path.read_text(encoding="utf-8")


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_one_hostile_node_of_ten_under_flwr_run(tmp_path: Path, task: ModuleType) -> None:
    with PrivateSuperLink() as link:
        link.wait_until_ready()
        stock = _accuracy(link, with_diffs(tmp_path, "malicious"), task)
        guarded = _accuracy(link, with_diffs(tmp_path, "malicious", "guarded"), task)
        rofsl = _accuracy(link, with_diffs(tmp_path, "malicious", "rofsl"), task)
    assert stock < 0.4
    assert guarded > 0.8
    assert rofsl > 0.8


def _accuracy(link: PrivateSuperLink, app: Path, task: ModuleType) -> float:
    """Of the model that `flwr run` leaves; 0 where it is not finite."""
    net = task.Net()
    net.load_state_dict(run_to_the_end(link, app))
    loss, accuracy = task.test(net, task.load_test_data())
    return float(accuracy) if math.isfinite(loss) else 0.0


def run_to_the_end(link: PrivateSuperLink, app: Path, **keys: str | float) -> dict[str, Tensor]:
    """The model that an app saves under `flwr run`, with these keys of its run config."""
    saved, config = app / "model.pt", app / "run.toml"
    config.write_text(tomli_w.dumps({"save-to": str(saved), **keys}), encoding="utf-8")
    resources = "num-supernodes=10 client-resources-num-cpus=1 init-args-num-cpus=2 init-args-log-to-driver=false"
    run = link.run_app(app, config, resources)
    status = ""
    while not status.startswith("finished"):
        time.sleep(0.5)
        status, details = link.status(run)
    assert status == "finished:completed", details
    return dict(torch.load(saved))
