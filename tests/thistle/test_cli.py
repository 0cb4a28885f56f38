"""The command line as a person meets it: exit codes, one line for what is wrong, run folders."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.command_server import ROOT, Server
from tests.federations import TINY, model_sha, rounds, run, tiny
from tests.server.test_federation import Killed, MortalGrid
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.running.prepare import make_experiment, settle
from thistle.sweeps.files import read_sweep
from thistle.tasks.threads import cores
from thistle.tasks.training import pick_device

Command = Callable[..., subprocess.CompletedProcess[str]]
QUICK = [f"--set={key}={value}" for key, value in TINY.items() if key != "runtime.workers"]


def environment() -> dict[str, str]:
    """Offline."""
    nowhere = "http://127.0.0.1:9"
    offline = {"HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "https_proxy": nowhere, "http_proxy": nowhere}
    return {**os.environ, **offline, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def thistle(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, forked from one that has imported everything."""
    return subprocess.CompletedProcess(arguments, *server().run(arguments, cwd or Path.cwd(), environment()))


@cache
def server() -> Server:
    return Server()


def in_a_new_interpreter(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thistle", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment(), check=False)


def start(*arguments: str, cwd: Path, **more: Any) -> subprocess.Popen[Any]:
    """A command to be interrupted: it hears Ctrl-C even where the tests themselves were told not to."""
    command = [sys.executable, "-m", "thistle", *arguments]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=cwd, env=here, stderr=subprocess.PIPE, **more)
    finally:
        signal.signal(signal.SIGINT, heard)


def complaint(*arguments: str, cwd: Path, run: Command = thistle) -> str:
    """The one line with which a command ends in exit code 2."""
    done = run(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert not (cwd / "runs").exists(), "a refused experiment leaves no run folder"
    return lines[0]


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), 7).save(path)


def broken_run(out: Path) -> RunFolder:
    """A run that was killed in its third round of four."""
    experiment = tiny(out, "broken")
    with pytest.raises(Killed):
        run(experiment, MortalGrid(experiment, 3))
    return RunFolder(out / "broken")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digits-clean", "--set", "strategy.nmae=x"], "strategy.nmae: no such key; did you mean strategy.name?"),
        (["digits-claen"], "digits-claen: neither a preset nor a .toml file; did you mean digits-clean?"),
        (["missing.toml"], "missing.toml: no such file"),
        (["digits-clean", "--set", "task.clients=0"], "task.clients = 0: should be greater than or equal to 1"),
        (["digits-clean", "--set", "task.clients=2000"], "task.clients = 2000"),
        (["digits-clean", "--set", "strategy.name=fedavgg"], "no such strategy; did you mean"),
        (["digits-clean", "--set", "model.name=resnet"], "no such model; did you mean resnet18?"),
        (["digits-clean", "--set", "model.name=cnn-calfat"], "needs images of at least 18×18"),
        (["digits-clean", "--set", "task.server-data=renderd"], "task.server-data = 'renderd' is not known"),
        (["digits-clean", "--set", "runtime.device=meta"], "runtime.device = 'meta': not available here"),
        (["rofsl-table1-quick"], "this is a sweep, not an experiment; run it with: thistle sweep rofsl-table1-quick"),
        (["digits-clean", "--set", "task.name=digit"], "did you mean 'digits'?"),
        (["digits-clean", "--set", "task.name=folder:nowhere"], "nowhere"),
        (["digits-clean", "--set", "runtime.device=gpu7"], "runtime.device = 'gpu7'"),
        (["digits-clean", "--set", "attack.kind=sing-flip", "--set", "attack.fraction=0.3"], "sign-flip"),
        (["digits-clean", "--set", "task.name=cifar10", "--set", "task.data-dir=."], "cifar-10-python.tar.gz"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in complaint("run", *arguments, cwd=tmp_path)


def test_a_sweeps_file_is_not_run_as_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[axes]\nclient.lr = [0.1, 0.2]\n")
    said = complaint("run", "grid.toml", cwd=tmp_path, run=in_a_new_interpreter)
    assert "run it with: thistle sweep grid.toml" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["runn"], "No such command 'runn'. Did you mean 'run'?"),
        (["deploy", "stats"], "No such command 'stats'. Did you mean 'status'?"),
        (["run", "digits-clean", "--rounds", "5"], "No such option '--rounds'; use --set rounds=…"),
        (["sweep", "digits-clean", "--lr=5"], "No such option '--lr'; use --set client.lr=…"),
        (["run", "digits-clean", "--nmae", "x"], "No such option '--nmae'. Did you mean '--name'?"),
    ],
)
def test_a_slip_gets_one_suggestion_that_works(arguments: list[str], expected: str) -> None:
    found = CliRunner().invoke(app, arguments, terminal_width=200)
    said = " ".join(found.stderr.replace("│", " ").split())
    assert found.exit_code == 2 and expected in said and said.count("Did you mean") <= 1, said


def test_devices_that_are_not_there_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, offered in ((False, "use auto or cpu: there is no CUDA device"), (True, "use auto, cpu or cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        with pytest.raises(UserError, match=offered):
            pick_device("meta")


def test_files_are_looked_for_beside_the_file_that_names_them_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    (beside / "mine.toml").write_text('task.name = "npz:x.npz"\n')
    (beside / "grid.toml").write_text('[axes]\nclient.lr = [0.1]\n[set]\ntask.name = "npz:x.npz"\n')

    def names() -> set[str]:
        (cell,) = read_sweep("../beside/grid.toml").cells(tmp_path / "out")
        return {make_experiment("../beside/mine.toml").task.name, cell.experiment.task.name}

    assert names() == {f"npz:{here}/x.npz"}, "where it is nowhere, the error names the current folder"
    (here / "x.npz").touch()
    assert names() == {f"npz:{here}/x.npz"}
    (beside / "x.npz").touch()
    assert names() == {f"npz:{beside}/x.npz"}
    assert make_experiment("digits-clean", ["task.name=npz:x.npz"]).task.name == f"npz:{here}/x.npz"


def test_flowers_own_strategies_are_quiet_too(tmp_path: Path) -> None:
    quiet = ("run", "digits-clean", "--quiet", "--engine", "inline", *QUICK, "--set=strategy.name=flwr-fedavg")
    done = in_a_new_interpreter(*quiet, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""


def test_an_attack_that_nobody_carries_out_is_refused(tmp_path: Path) -> None:
    expected = "attack.kind = sign-flip: nobody attacks; set attack.fraction or attack.clients"
    assert expected in complaint("run", "digits-clean", "--set=attack.kind=sign-flip", cwd=tmp_path)
    settle({"attack.kind": "sign-flip", "attack.fraction": 0.0}, "run")  # as a grid over fractions may have it


def test_without_an_attack_it_does_not_matter_who_attacked() -> None:
    kept = make_experiment("digits-mix", {"attack.kind": "none"}, out="runs")
    assert (kept.attack.fraction, kept.attack.clients) == (0.0, "")
    with pytest.raises(UserError, match=r"attack\.fraction = 0\.3: nobody attacks"):
        make_experiment("digits-mix", {"attack.kind": "none", "attack.fraction": 0.3}, out="runs")


def test_the_demo_shows_four_strategies_under_two_attacks(tmp_path: Path) -> None:
    sizes = ("task.clients=10", "client.per-round=5", "rounds=1", "task.train-size=200")
    settings = [word for size in sizes for word in ("--set", size)]
    done = thistle("demo", "--engine", "inline", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "; rofsl on cnn-emnist with 151,306 parameters;" in done.stderr, "what auto became"
    assert "run 1 of 8: FedAvg under mix" in done.stderr and "run 8 of 8: Evidence under ipm" in done.stderr
    assert all(done.stdout.count(f"\n{name} ") == 2 for name in ("FedAvg", "RFA (GeoMed)", "RoFSL", "Evidence"))
    assert len(list((tmp_path / "runs" / "demo").glob("*/summary.json"))) == 8
    assert (tmp_path / "runs" / "demo" / "accuracy.png").is_file()


def test_the_demo_goes_to_the_cluster_that_it_is_given(tmp_path: Path) -> None:
    line = complaint("demo", "--set", "runtime.ray-address=127.0.0.1:1", cwd=tmp_path)
    assert "runtime.ray-address" in line and "no answer there" in line


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        picture(tmp_path / "data" / split / "cat" / "1.png")
    (tmp_path / "data" / "train" / "cat" / "2.png").write_bytes(b"not an image")
    line = complaint("run", "digits-clean", "--set", "task.name=folder:data", cwd=tmp_path)
    assert "unreadable image" in line and "2.png" in line


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        picture(tmp_path / "one.png")
        archive.add(tmp_path / "one.png", "train/cat/1.png")
    (tmp_path / "short.tar.gz").write_bytes(raw.getvalue()[:-40])
    line = complaint("run", "digits-clean", "--set", "task.name=folder:short.tar.gz", cwd=tmp_path)
    assert "short.tar.gz" in line


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = complaint("run", "digits-clean", "--out", "file", cwd=tmp_path)
    assert "run.out: cannot make" in line


def test_lists_name_everything(tmp_path: Path) -> None:
    done = thistle("list", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("digits", "resnet18", "fedavg", "digits-clean", "folder:PATH", "none", "trades", "robal", "pgd20"):
        assert word in done.stdout


def test_a_strategy_is_listed_with_its_settings(tmp_path: Path) -> None:
    done = thistle("list", "strategies", "rofsl", cwd=tmp_path)
    assert done.returncode == 0
    for text in (
        "strategy.theta = 0.5  (number from 0 to below 1, or auto)",
        "θ of the loss filter",
        "strategy.pre = ",
    ):
        assert text in done.stdout
    assert "krum" not in done.stdout
    one = thistle("list", "attacks", "sign-flip", cwd=tmp_path)
    assert "sign-flip" in one.stdout and "label-flip" not in one.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["strategies", "rofls"], "no such strategy; did you mean rofsl?"),
        (["strategies", "mine:x:"], "strategy.name = 'mine:x:': should be module:factory"),
        (["attacks", "sing-flip"], "'sing-flip' is not in the list of attacks; did you mean sign-flip?"),
    ],
)
def test_what_is_not_listed_is_said_in_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in complaint("list", *arguments, cwd=tmp_path)


def test_inline_runs_are_numbered_and_named(tmp_path: Path) -> None:
    for _ in range(2):
        done = thistle("run", "digits-clean", "--engine", "inline", *QUICK, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "last accuracy" in done.stdout and "run folder:" in done.stdout
        assert "plan: inline" in done.stderr and "; fedavg on mlp with 55,210 parameters;" in done.stderr
    one, two = (RunFolder(tmp_path / "runs" / name) for name in ("digits-clean", "digits-clean-2"))
    assert model_sha(one) == model_sha(two)
    assert read_json(two.summary)["name"] == "digits-clean-2"
    again = thistle("run", "digits-clean", "--engine", "inline", "--name", "digits-clean", *QUICK, cwd=tmp_path)
    assert again.returncode == 2 and "thistle resume" in again.stderr
    shown = thistle("resume", "digits-clean", cwd=tmp_path)
    assert shown.returncode == 0 and "last accuracy" in shown.stdout


def test_ctrl_c_leaves_a_resumable_run(tmp_path: Path) -> None:
    process = start("run", "digits-clean", "--engine", "inline", *QUICK, "--set=rounds=400", cwd=tmp_path)
    folder = RunFolder(tmp_path / "runs" / "digits-clean")
    deadline = time.monotonic() + 240
    while len(rounds(folder)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130
    assert b"thistle resume" in errors and b"Traceback" not in errors
    assert folder.get_status()["status"] == "stopped"
    assert not folder.summary.exists() and any(folder.checkpoints.iterdir())


def test_resume_of_nothing(tmp_path: Path) -> None:
    assert "no run folder there" in complaint("resume", "nowhere", cwd=tmp_path)


def test_a_run_that_flwr_began_is_resumed_on_hosts_of_this_machine(tmp_path: Path) -> None:
    folder = broken_run(tmp_path / "runs")
    folder.save_experiment(tiny(tmp_path / "runs", "broken", **{"runtime.workers": 0}))
    done = thistle("resume", "broken", "--engine", "inline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert folder.load_experiment().runtime.workers == cores()
    assert model_sha(folder) == model_sha(run(tiny(tmp_path, "whole")))


@pytest.mark.parametrize("strategy", ["scaffold", "dsvd"])
def test_a_finished_run_goes_on_for_some_rounds(tmp_path: Path, strategy: str) -> None:
    short = run(tiny(tmp_path, "short", **{"strategy.name": strategy}))
    long = run(tiny(tmp_path, "long", **{"strategy.name": strategy, "rounds": 7}))
    done = thistle("resume", str(short.path), "--rounds", "7", "--engine", "inline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model_sha(short) == model_sha(long)
    assert [line["round"] for line in rounds(short)] == [1, 2, 3, 4, 5, 6, 7]
    assert short.load_experiment().rounds == 7


def test_a_stopped_run_may_become_longer_too(tmp_path: Path) -> None:
    folder = broken_run(tmp_path / "begun")
    done = thistle("resume", str(folder.path), "--rounds", "6", "--engine", "inline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model_sha(folder) == model_sha(run(tiny(tmp_path, "whole", rounds=6)))


def test_a_run_that_would_not_be_the_same_is_not_made_longer(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, "done"))
    before = folder.summary.read_bytes(), folder.metrics.read_bytes()
    longer = ("resume", str(folder.path), "--engine", "inline", "--rounds")
    assert "has 4 already; give a larger number" in complaint(*longer, "4", cwd=tmp_path)
    folder.save_experiment(tiny(tmp_path, "done", **{"client.lr-schedule": "cosine"}))
    assert "client.lr-schedule = cosine follows rounds" in complaint(*longer, "5", cwd=tmp_path)
    folder.save_experiment(tiny(tmp_path, "done"))
    (tmp_path / "sweep.json").write_text("{}")
    assert "is a cell of a sweep" in complaint(*longer, "5", cwd=tmp_path)
    (tmp_path / "sweep.json").unlink()
    shutil.rmtree(folder.checkpoints)
    assert "no complete checkpoint" in complaint(*longer, "5", cwd=tmp_path)
    assert (folder.summary.read_bytes(), folder.metrics.read_bytes()) == before


def test_a_deployed_run_does_not_become_a_simulation(tmp_path: Path) -> None:
    folder = broken_run(tmp_path / "begun")
    lines = [json.dumps({**line, "detection": None}) + "\n" for line in rounds(folder)]
    folder.metrics.write_text("".join(lines))
    before = folder.status.read_bytes()
    assert "thistle deploy resume" in complaint("resume", str(folder.path), "--engine", "inline", cwd=tmp_path)
    assert folder.status.read_bytes() == before


def test_a_file_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, "made"))
    (folder.path / "robustness.json").mkdir()
    line = complaint("evaluate", str(folder.path), "--attacks=natural", "--samples=10", cwd=tmp_path)
    assert f"{folder.path / 'robustness.json'}: Is a directory" in line
