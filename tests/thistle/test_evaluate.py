"""`thistle evaluate`: a table, figures and pictures of what a model withstands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.federations import model_sha, run, tiny
from tests.thistle.test_cli import thistle
from thistle.commands.evaluate import Terms, measure, show
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.results.trained import find_subject


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tiny(tmp_path_factory.mktemp("runs"), **{"client.calibration": "robal", "client.objective": "pgd"}))


def test_a_run_is_measured(folder: RunFolder, tmp_path: Path) -> None:
    done = thistle("evaluate", folder.path.name, "--out", str(folder.path.parent), "--attacks", "natural,pgd3,cw")
    assert done.returncode == 0, done.stderr
    assert "natural" in done.stdout and "pgd3" in done.stdout and str(folder.path / "robustness.json") in done.stdout
    found = read_json(folder.path / "robustness.json")
    assert found["samples"] == 297 and found["epsilon"] == 0.1 and found["step"] == 0.025
    assert found["model_sha256"] == model_sha(folder)
    assert found["natural"] == pytest.approx(read_json(folder.summary)["max_accuracy"], abs=0.2)
    assert 0 <= found["cw"] <= found["pgd3"] + 0.02 <= found["natural"] + 0.04
    for name in ("natural", "pgd3", "cw"):
        assert set(found["per_class"][name]) == set("0123456789")
    for picture in ("robustness.png", "features.png"):
        with Image.open(folder.path / picture) as image:
            assert image.width > 500


def test_a_model_alone_needs_its_experiment(folder: RunFolder, tmp_path: Path) -> None:
    alone = tmp_path / "mine.safetensors"
    shutil.copy(folder.model, alone)
    with pytest.raises(UserError, match=r"no experiment\.toml beside it; name its experiment"):
        find_subject(str(alone), "runs", "")
    subject = find_subject(str(alone), "runs", str(folder.experiment))
    measured = measure(subject, Terms(["natural", "fgsm"], 50, 0.05, None))
    assert measured.document["samples"] == 50
    show(measured, subject, pictures=False)
    assert (tmp_path / "robustness.json").is_file() and not (tmp_path / "features.png").exists()


def test_a_model_needs_neither_the_server_data_nor_the_device_of_its_run(folder: RunFolder, tmp_path: Path) -> None:
    shutil.copy(folder.model, tmp_path)
    elsewhere = {"strategy.name": "rofsl", "task.server-data": f"folder:{tmp_path}/gone", "runtime.device": "cuda:7"}
    trained = folder.load_experiment().flat()
    RunFolder(tmp_path).save_experiment(Experiment.of({**trained, **elsewhere}))
    measured = measure(find_subject(str(tmp_path), "runs"), Terms(["natural"], 50, 0.05, None))
    assert measured.document["model_sha256"] == model_sha(folder)


def test_a_model_of_another_network_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    alone = tmp_path / "mine.safetensors"
    shutil.copy(folder.model, alone)
    subject = find_subject(str(alone), "runs", "digits-clean")
    with pytest.raises(UserError, match=r"does not hold the network of model\.name = auto"):
        measure(subject, Terms(["natural"], 10, 0.1, None))
    alone.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        measure(subject, Terms(["natural"], 10, 0.1, None))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "nowhere: no run folder there, nor at runs/nowhere"),
        (["nowhere.safetensors"], "nowhere.safetensors: no such file"),
        (["nowhere", "--attacks", "fgms"], "--attacks = 'fgms': no attack is called 'fgms'"),
        (["nowhere", "--attacks", ","], "names no attack"),
        (["nowhere", "--epsilon", "3"], "--epsilon 3: pixels are in [0, 1]"),
        (["nowhere", "--step", "-0.1"], "--step -0.1: pixels are in [0, 1]"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = thistle("evaluate", *arguments, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 2 and len(lines) == 1 and expected in lines[0], done.stderr


def test_an_unfinished_run_has_no_model_yet(tmp_path: Path) -> None:
    experiment = tiny(tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.save_experiment(experiment)
    with pytest.raises(UserError, match="the run is not begun and has no final model yet"):
        find_subject(str(folder.path), "runs", "")
