"""`thistle predict` and `thistle.load`: a trained model at work."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import thistle
from tests.federations import rounds, run, tiny
from tests.thistle.test_cli import thistle as command
from thistle.commands.predict import find_images
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder
from thistle.tasks.sources import load_dataset

LEARNING: dict[str, Any] = {"rounds": 6, "client.lr": 0.5, "client.batch-size": 10, "task.partition": "iid"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tiny(tmp_path_factory.mktemp("runs"), **LEARNING))


@pytest.fixture(scope="module")
def model(folder: RunFolder) -> thistle.Run:
    return thistle.load(folder.path)


@pytest.fixture(scope="module")
def test_set(folder: RunFolder) -> tuple[np.ndarray, np.ndarray]:
    dataset = load_dataset(folder.load_experiment().task)
    return dataset.test.pixels, dataset.test.labels


def test_a_run_knows_its_classes_and_its_images(model: thistle.Run) -> None:
    assert model.classes == tuple("0123456789") and model.shape == (1, 8, 8)


def test_it_is_as_right_as_the_run_said(model: thistle.Run, folder: RunFolder, test_set: Any) -> None:
    pixels, labels = test_set
    probabilities = model.probabilities(pixels)
    assert probabilities.shape == (297, 10) and np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert rounds(folder)[-1]["accuracy"] == pytest.approx((probabilities.argmax(1) == labels).mean(), abs=0.005)


def test_every_form_of_an_image_is_the_same_image(model: thistle.Run, test_set: Any, tmp_path: Path) -> None:
    grey = test_set[0][5, 0]
    file = tmp_path / "one.png"
    Image.fromarray(grey).save(file)
    forms: list[Any] = [
        str(file),
        file,
        Image.fromarray(grey),
        Image.fromarray(grey).convert("RGB"),
        grey,
        grey[None],
        grey[..., None],
        grey.astype(np.float64) / 255,
        torch.from_numpy(grey.copy()),
    ]
    found = model.probabilities(forms)
    assert np.allclose(found, found[0], atol=1e-6)
    for alone in (str(file), grey[None]):
        assert np.allclose(model.probabilities(alone), found[:1], atol=1e-6)
    prediction = model.predict(file)[0]
    assert prediction.label == model.classes[found[0].argmax()] == next(iter(prediction.probabilities))
    assert prediction.probability == max(prediction.probabilities.values())
    assert model.predict([]) == []


def test_images_of_any_size_are_fitted(model: thistle.Run, test_set: Any) -> None:
    pixels = test_set[0]
    large = [Image.fromarray(one[0]).resize((200, 170), Image.Resampling.BICUBIC).convert("RGB") for one in pixels[:60]]
    small = [one.label for one in model.predict(pixels[:60])]
    assert np.mean([a.label == b for a, b in zip(model.predict(large), small, strict=True)]) > 0.9


def test_the_command(folder: RunFolder, test_set: Any, tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    for number in range(3):
        Image.fromarray(test_set[0][number, 0]).resize((64, 64)).save(scans / f"{number}.png")
    (scans / "notes.txt").write_text("not an image")
    Image.fromarray(test_set[0][3, 0]).convert("RGB").save(tmp_path / "one.jpg")
    done = command("predict", str(folder.path), "one.jpg", "scans", "--csv", "figures.csv", "--top", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if "%" in line]
    assert [line.split()[0] for line in shown] == ["one.jpg", "scans/0.png", "scans/1.png", "scans/2.png"]
    assert all(line.count("%") == 2 for line in shown)
    with (tmp_path / "figures.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and set(rows[0]) == {"image", "class", "probability", *(f"p({c})" for c in "0123456789")}
    for row, line in zip(rows, shown, strict=True):
        assert row["class"] == line.split()[1] and row["probability"] == row[f"p({row['class']})"]


def test_a_model_that_does_not_say_its_classes_asks_the_task(folder: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "older")
    shutil.copytree(folder.path, copy.path)
    save_file(load_file(folder.model), copy.model)
    assert thistle.load("older", out=str(tmp_path)).classes == tuple("0123456789")


def test_what_is_wrong_is_said_in_one_line(folder: RunFolder, tmp_path: Path, model: thistle.Run) -> None:
    with pytest.raises(UserError, match="no run folder there"):
        thistle.load(tmp_path / "nowhere")
    unfinished = RunFolder(tmp_path / "unfinished")
    unfinished.create()
    unfinished.save_experiment(folder.load_experiment())
    with pytest.raises(UserError, match="the run is not begun and has no final model yet"):
        thistle.load(unfinished.path)
    broken = RunFolder(tmp_path / "broken")
    shutil.copytree(folder.path, broken.path)
    broken.model.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        thistle.load(broken.path)
    (tmp_path / "no.png").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"unreadable image 'no\.png'"):
        model.predict([tmp_path / "no.png"])
    with pytest.raises(UserError, match="cannot be read"):
        model.predict([tmp_path / "none.png"])
    with pytest.raises(UserError, match=r"an image has shape \(1, 3\)"):
        model.predict([np.zeros(3)])
    with pytest.raises(UserError, match=r"the array has values outside \[0, 1\]"):
        model.predict(np.full((2, 8, 8), 7.0))
    with pytest.raises(UserError, match="no such file"):
        find_images([str(tmp_path / "none.png")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images in this directory"):
        find_images([str(tmp_path / "empty")])


def test_the_command_line_refuses(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "no.png").write_bytes(b"nonsense")
    done = command("predict", str(folder.path), "no.png", cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 2 and len(lines) == 1 and "unreadable image" in lines[0]
