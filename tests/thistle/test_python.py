"""Thistle as a library: runs and sweeps from Python, in a process that is the user's."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import thistle
from tests.federations import TINY, model_sha, tiny
from tests.federations import run as run_federation
from thistle.engines.inline import undisturbed
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.running.launch import Engine, Launch
from thistle.running.prepare import make_experiment
from thistle.terminal import progress, screen
from thistle.terminal.progress import RunProgress

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
LONG = {**TINY, "rounds": 60}
SULKY = """
from torch import nn

class Sulky(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        if not self.training and len(x) > 2:
            raise ValueError("no evaluation today")
        return self.layer(x.flatten(1))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> thistle.Run:
    out = tmp_path_factory.mktemp("runs")
    return thistle.run("digits-clean", TINY, out=out, engine="inline", progress=False)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model of the same experiment without the library around it."""
    keys = {"strategy.name": "fedavg", "attack.fraction": 0.0}
    return model_sha(run_federation(tiny(tmp_path_factory.mktemp("reference"), **keys)))


def test_a_run_has_everything(run: thistle.Run, tmp_path: Path) -> None:
    assert run.folder.is_dir() and run.status == "finished"
    assert run.summary == read_json(run.folder / "summary.json")
    assert [line["round"] for line in run.metrics] == [1, 2, 3, 4]
    assert len(run.verdicts) == 16 and run.verdicts[0]["verdict"] == "accepted"
    assert run.experiment.client.batch_size == 25
    assert not run.model.training
    assert run.model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert len(run.predict(np.zeros((3, 8, 8), dtype=np.uint8))) == 3
    assert run.classes == tuple("0123456789") and run.shape == (1, 8, 8)
    assert run.report() == run.folder / "report.html"
    assert run.report(tmp_path / "deep" / "page.html").read_text().startswith("<!")
    text = repr(run)
    assert "digits-clean: finished" in text and f"{run.summary['final_accuracy']:.4f}" in text and "\n" not in text


def test_every_source_and_every_call_gives_the_same_model(run: thistle.Run, reference: str, tmp_path: Path) -> None:
    preset = run.summary["model_sha256"]
    again = thistle.run("digits-clean", TINY, out=run.folder.parent, engine="inline", progress=False)
    assert again.folder.name == "digits-clean-2" and again.summary["model_sha256"] == preset
    file = thistle.run(run.folder / "experiment.toml", out=tmp_path, engine="inline", progress=False, name="file")
    assert file.summary["model_sha256"] == preset and file.folder == tmp_path / "file"
    keys = {"strategy": {"name": "fedavg"}, "attack.fraction": np.float32(0), **TINY, "rounds": np.int64(4)}
    alone = thistle.run(keys, out=tmp_path, engine="inline", progress=False)
    assert alone.summary["model_sha256"] == reference and alone.folder == tmp_path / "run"


def test_an_existing_run_is_the_same_kind_of_object(run: thistle.Run) -> None:
    for found in (
        thistle.load(run.folder),
        thistle.load("digits-clean", out=run.folder.parent),
        thistle.load(run.folder / "model.safetensors"),
        thistle.open_run(run.folder),
    ):
        assert isinstance(found, thistle.Run)
        assert found.folder == run.folder and found.summary == run.summary
        assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), run.model.parameters(), strict=True))


def test_an_unfinished_run_can_be_looked_at(run: thistle.Run, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "unfinished")
    folder.create()
    folder.save_experiment(run.experiment)
    found = thistle.open_run(folder.path)
    assert found.metrics == [] and found.status == "not begun" and "not begun" in repr(found)
    with pytest.raises(thistle.UserError, match="the run is not begun and has no summary yet"):
        _ = found.summary
    with pytest.raises(thistle.UserError, match="the run is not begun and has no final model yet"):
        _ = found.model


@pytest.mark.parametrize(
    ("source", "overrides", "more", "expected"),
    [
        ("digits-claen", {}, {}, "digits-claen: neither a preset nor a .toml file; did you mean digits-clean?"),
        (
            "digits-clean",
            {"strategy.nmae": "x"},
            {},
            "strategy.nmae: no such key; did you mean strategy.name?",
        ),
        ("digits-clean", {"task.clients": 0}, {}, "task.clients = 0: should be greater than or equal to 1"),
        ("digits-clean", {"client.lr": "fast"}, {}, "client.lr = 'fast': should be a number"),
        ({"task.name": "digit"}, {}, {}, "did you mean 'digits'?"),
        ({3: 4}, {}, {}, "3: should be a setting's name"),
        ("digits-clean", {}, {"engine": "rya"}, "engine = 'rya': should be ray or inline"),
        ("digits-clean", {}, {"workers": 0}, "workers = 0: should be a whole number, 1 or more"),
        ("digits-clean", {}, {"name": "a/b"}, "run.name = 'a/b'"),
    ],
)
def test_bad_input_is_a_user_error(
    tmp_path: Path, source: Any, overrides: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    with pytest.raises(thistle.UserError) as caught:
        thistle.run(source, overrides, out=tmp_path, **{"engine": "inline", **more})
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir()), "a refused experiment leaves no run folder"


def test_a_run_that_fails_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sulky.py").write_text(SULKY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(thistle.RunFailed, match="no evaluation today") as caught:
        thistle.run("digits-clean", {**TINY, "model.name": "sulky:Sulky"}, engine="inline", progress=False)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.folder == tmp_path / "runs" / "digits-clean"
    assert thistle.open_run(error.folder).status == "failed"
    assert capfd.readouterr() == ("", "")


def test_an_interrupted_run_can_be_continued(tmp_path: Path) -> None:
    metrics = tmp_path / "long" / "metrics.jsonl"

    def interrupt() -> None:
        while not (metrics.exists() and len(metrics.read_bytes().splitlines()) > 2):
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            thistle.run("digits-clean", LONG, out=tmp_path, name="long", engine="inline", progress=False)
    finally:
        signal.signal(signal.SIGINT, heard)
    stopped = thistle.open_run(tmp_path / "long")
    assert stopped.status == "stopped" and 2 <= len(stopped.metrics) < 60
    whole = thistle.run("digits-clean", LONG, out=tmp_path, name="whole", engine="inline", progress=False)
    run_federation(Experiment.of({**stopped.experiment.flat(), "run.resume": True}))
    assert thistle.load(stopped.folder).summary["model_sha256"] == whole.summary["model_sha256"]


def test_progress_is_on_stderr_or_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    thistle.run("digits-clean", TINY, out=tmp_path, engine="inline")
    said = capfd.readouterr()
    assert said.out == "" and "plan: inline" in said.err and "round 4: accuracy" in said.err
    thistle.run("digits-clean", TINY, out=tmp_path, engine="inline", progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_notebook_without_widgets_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Console(force_jupyter=True, record=True)
    monkeypatch.setattr(progress, "messages", notebook)
    monkeypatch.setattr(screen, "messages", notebook)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    folder = RunFolder(tmp_path / "run")
    folder.create()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with RunProgress(folder, 2, quiet=False):
            counts = {"accepted": 4, "filtered": 0, "rejected": 0, "failed": 0}
            folder.metrics.write_text(json.dumps({"round": 1, "seconds": 0.1, "accuracy": 0.5, **counts}) + "\n")
    assert "round 1: accuracy 0.500 4 accepted" in notebook.export_text()


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    gc.unfreeze()  # what the tests have frozen
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    torch.set_num_threads(2)
    try:
        thistle.run("digits-clean", TINY, out=tmp_path, engine="inline", progress=False)
        assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
        assert torch.get_num_threads() == 2 and gc.get_freeze_count() == 0
    finally:
        torch.set_num_threads(threads)


def test_two_threads_at_once(run: thistle.Run, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(thistle.run, "digits-clean", TINY, out=tmp_path, engine="inline", progress=False)
            for _ in range(2)
        ]
        found = [call.result() for call in calls]
    assert {one.summary["model_sha256"] for one in found} == {run.summary["model_sha256"]}
    assert {one.folder.name for one in found} == {"digits-clean", "digits-clean-2"}
    logs = [(one.folder / "log.txt").read_text().splitlines() for one in found]
    assert len(logs[0]) == len(logs[1]), "nobody writes into another's log"


def test_what_another_thread_checks_does_not_disturb_a_run(tmp_path: Path) -> None:
    begun = threading.Event()

    def check() -> str:
        begun.set()
        return Launch(Engine.INLINE, quiet=True).check(make_experiment("digits-clean", TINY, "other", str(tmp_path)))

    with ThreadPoolExecutor(1) as pool:
        with undisturbed():
            torch.manual_seed(7)
            before = torch.get_rng_state()
            plan = pool.submit(check)
            begun.wait()
            with pytest.raises(TimeoutError):
                plan.result(timeout=1)
            assert torch.equal(torch.get_rng_state(), before)
        assert "mlp" in plan.result(timeout=100)


def test_frames(run: thistle.Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = run.frame()
    assert isinstance(frame, pandas.DataFrame) and list(frame["round"]) == [1, 2, 3, 4]
    assert "detection.whole.true_positive" in frame.columns and len(run.frame("verdicts")) == 16


def test_frames_without_pandas(run: thistle.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^frame\(\) needs pandas, which is not installed: pip install pandas$"):
        run.frame()


def test_a_sweep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import matplotlib as mpl

    backend = mpl.get_backend()
    grid = {"axes": {"strategy.name": ["fedavg", "rfa"]}, "set": TINY, "seeds": [1]}
    sweep = thistle.sweep(grid, name="rivals", out=tmp_path, engine="inline", jobs=1, progress=False)
    assert capfd.readouterr() == ("", "")
    assert sweep.folder == tmp_path / "rivals" and (sweep.folder / "sweep.csv").is_file()
    assert [(row["strategy.name"], row["seed"], row["status"]) for row in sweep.table] == [
        ("fedavg", 1, "finished"),
        ("rfa", 1, "finished"),
    ]
    assert [one.summary["final_accuracy"] for one in sweep.runs] == [row["final_accuracy"] for row in sweep.table]
    assert sweep.failed == {} and sweep.expectations == [] and "rivals: 2 cells" in repr(sweep)
    assert sweep.report() == sweep.folder / "report.html" and sweep.report().is_file()
    assert mpl.get_backend() == backend
    before = {path: path.stat().st_mtime_ns for path in sweep.folder.glob("*/summary.json")}
    again = thistle.sweep(grid, name="rivals", out=tmp_path, engine="inline")
    assert again.table == sweep.table and "2 finished before" in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_sweep_with_a_broken_cell(tmp_path: Path) -> None:
    grid = {"axes": {"task.min-size": [1, 500]}, "set": TINY, "engine": "inline"}
    with pytest.raises(thistle.SweepFailed, match=r"^task\.min-size=500 seed=0: task\.min-size = 500") as caught:
        thistle.sweep(grid, out=tmp_path, jobs=1, progress=False)
    assert isinstance(caught.value, thistle.RunFailed) and caught.value.folder == tmp_path / "sweep"
    assert [row["status"] for row in caught.value.result.table] == ["finished", "failed"]
    with pytest.raises(thistle.UserError, match=r"sweep: axis: no such key; did you mean axes\?"):
        thistle.sweep({"axis": {}}, out=tmp_path)


def python(code: str, folder: Path) -> str:
    """What a script of the user's in this folder prints."""
    (folder / "script.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_thistle_imports_nothing(tmp_path: Path) -> None:
    code = """
import sys
before = set(sys.modules)
import thistle
print([name for name in sys.modules if name.startswith(("thistle.", "torch", "flwr", "numpy", "rich", "ray"))])
assert set(thistle.__all__) >= {"run", "sweep", "load", "open_run", "Run", "UserError", "RunFailed"}
from thistle import *
assert issubclass(SweepFailed, RunFailed) and not hasattr(thistle, "nothing")
"""
    assert python(code, tmp_path) == "[]\n"


@pytest.mark.parametrize("thistle_first", [True, False], ids=["thistle-first", "own-first"])
def test_a_folder_with_modules_of_the_same_names(tmp_path: Path, thistle_first: bool) -> None:
    """The script has no `if __name__ == "__main__"` either: the workers of a sweep must not run it again."""
    for name in ("server", "client", "tasks", "protocol", "experiments", "commands", "report"):
        (tmp_path / f"{name}.py").write_text(f"mine = {name!r}")
    for name in ("strategies", "attacks", "engines", "sweeps"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"mine = {name!r}")
    own = "import server, client, tasks, protocol, experiments, commands, report, strategies, attacks, engines, sweeps"
    use = f"""
settings = {TINY!r}
run = thistle.run("digits-clean", settings, engine="inline", progress=False)
assert thistle.load("digits-clean").summary == run.summary
grid = {{"set": settings, "axes": {{"client.lr": [0.1, 0.2]}}}}
sweep = thistle.sweep(grid, engine="inline", progress=False)
assert [row["status"] for row in sweep.table] == ["finished", "finished"]
"""
    check = """
import thistle.strategies
assert "mine" not in vars(thistle.strategies)
modules = (server, client, tasks, protocol, experiments, commands, report, strategies, attacks, engines, sweeps)
print([module.mine for module in modules])
"""
    parts = ["import thistle", use, own, check] if thistle_first else [own, "import thistle", use, check]
    names = own.removeprefix("import ").split(", ")
    assert python("\n".join(parts), tmp_path) == f"{names}\n"


def test_the_guide_s_example_runs(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").partition("## From Python")[2]
    lines = section.partition("\n\n| call")[0].splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)
    assert "thistle.run(" in code and "thistle.sweep(" in code
    said = python(code, tmp_path)
    assert "did you mean" in said and (tmp_path / "runs" / "digits-mix" / "report.html").is_file()


@pytest.mark.ray
def test_on_ray_from_another_thread(run: thistle.Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(thistle.run, "digits-clean", TINY, out=tmp_path, workers=2, progress=False).result()
    assert found.summary["model_sha256"] == run.summary["model_sha256"]
    assert found.experiment.runtime.workers == 2
    assert capfd.readouterr() == ("", "")
