"""The papers' presets and sweeps: all can be read, have the papers' settings, and run, if need be on a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thistle.attacks.registry import attacks
from thistle.engines.inline import run_inline
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.running.prepare import claim_folder, make_experiment, preset_about, preset_names
from thistle.sweeps.files import read_sweep, sweep_about, sweep_names

PAPERS: dict[str, dict[str, Any]] = {
    "rofsl-cifar10": {
        "rounds": 1500,
        "task.name": "cifar10",
        "task.clients": 1000,
        "task.partition": "dirichlet-even",
        "client.per-round": 20,
        "client.epochs": 2,
        "client.batch-size": 25,
        "client.lr": 0.1,
        "client.weight-decay": 1e-3,
        "strategy.aggregator": "geometric-median",
        "strategy.rho": 0.1,
        "strategy.theta": 0.5,
        "strategy.tau": 1.0,
        "strategy.server-batch-size": 180,
        "strategy.server-epochs": 2,
        "evaluate.window": 50,
    },
    "rofsl-emnist": {
        "rounds": 500,
        "task.name": "emnist",
        "task.clients": 450,
        "client.batch-size": 50,
        "client.weight-decay": 1e-4,
        "evaluate.window": 20,
    },
    "dsvd-fashion": {"task.name": "fashion-mnist", "strategy.name": "dsvd", "strategy.rank": 0.5, "task.clients": 100},
    "calfat-cifar10": {
        "rounds": 150,
        "task.name": "cifar10",
        "task.clients": 5,
        "task.partition": "dirichlet",
        "task.alpha": 0.1,
        "model.name": "cnn-calfat",
        "client.per-round": 5,
        "client.epochs": 1,
        "client.batch-size": 128,
        "client.lr": 0.01,
        "client.momentum": 0.9,
        "client.weight-decay": 2e-3,
        "client.epsilon": pytest.approx(8 / 255, abs=1e-7),
        "client.step": pytest.approx(2 / 255, abs=1e-7),
        "client.steps": 10,
        "client.objective": "ckl",
        "client.calibration": "calfat",
        "client.augment": True,
    },
}


OF_OUR_OWN = (
    "backdoors-cifar10",
    "backdoors-fashion",
    "rofsl-table1-cifar-short",
    "attacks-digits",
    "evidence-digits",
    "rofsl-decoupled",
    "joint-digits",
)
"""Sweeps that are no paper's whole table."""


@pytest.mark.parametrize("name", PAPERS)
def test_presets_have_the_papers_settings_and_a_quick_form(name: str) -> None:
    flat = make_experiment(name, []).flat()
    assert {key: flat[key] for key in PAPERS[name]} == PAPERS[name]
    assert f"{name}-quick" in preset_names()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_an_experiment_with_a_line_about_it(name: str) -> None:
    make_experiment(name, [])
    assert preset_about(name)


@pytest.mark.parametrize("name", sweep_names())
def test_every_sweep_can_be_read(name: str, tmp_path: Path) -> None:
    plan = read_sweep(name, [])
    assert plan.cells(tmp_path) and sweep_about(name)
    if name.endswith("-quick"):
        assert plan.expectations and plan.engine == "inline" and name.removesuffix("-quick") in sweep_names()
    elif name not in OF_OUR_OWN:
        assert f"{name}-quick" in sweep_names()


def test_the_table_of_attacks_has_all_of_them(tmp_path: Path) -> None:
    kinds = {str(cell.settings["attack.kind"]) for cell in read_sweep("attacks-digits").cells(tmp_path)}
    assert kinds == {name for name, cls in attacks().items() if not cls.needs}


def test_the_short_table_takes_its_images_from_the_data_folder(tmp_path: Path) -> None:
    for name in ("cifar10-jpeg.tar.xz", "stl10-server.tar.xz"):
        (tmp_path / name).touch()
    plan = read_sweep("rofsl-table1-cifar-short", [f"task.data-dir={tmp_path}"])
    cells = plan.cells(tmp_path / "out")
    assert {(c.settings["strategy.gamma"], c.settings["attack.fraction"]) for c in cells} == {
        (gamma, beta) for gamma in (0.0, 0.1) for beta in (0.0, 0.3, 0.6)
    }
    assert len(cells) == 18 and list(plan.seeds) == [0]
    for cell in cells:
        task = cell.experiment.task
        assert task.name == f"folder:{tmp_path}/cifar10-jpeg.tar.xz"
        assert task.server_data == f"folder:{tmp_path}/stl10-server.tar.xz"
        assert (cell.experiment.rounds, task.alpha) == (150, 0.3)


EMNIST = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"


def stand_in(path: Path, classes: list[str], shape: tuple[int, ...]) -> str:
    """A few images of noise for every class."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, each in (("train", 6), ("test", 1)):
        labels = np.repeat(np.arange(len(classes)), each)
        arrays[f"x_{split}"] = rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8)
        arrays[f"y_{split}"] = labels
    np.savez(path, classes=np.array(classes), **arrays)
    return f"npz:{path}"


FEW = ["rounds=1", "client.batch-size=8", "evaluate.window=1", "evaluate.attack-samples=4", "client.timeout=100.0"]


@pytest.mark.parametrize(
    ("preset", "classes", "shape", "more"),
    [
        ("rofsl-emnist", list(EMNIST), (28, 28), ["task.clients=12", "client.per-round=4"]),
        ("calfat-cifar10", [f"c{i:02}" for i in range(100)], (32, 32, 3), ["task.train-size=100", "client.steps=1"]),
        ("calfat-cifar10", list("0123456789"), (32, 32, 3), ["client.steps=1", "task.min-size=1"]),
        ("dsvd-fashion", list(EMNIST), (28, 28), ["task.clients=6", "client.per-round=6", "attack.fraction=0.2"]),
    ],
    ids=["emnist", "cifar100", "svhn", "dsvd-emnist"],
)
def test_presets_run_on_a_stand_in(
    tmp_path: Path, preset: str, classes: list[str], shape: tuple[int, ...], more: list[str]
) -> None:
    source = stand_in(tmp_path / "few.npz", classes, shape)
    experiment = make_experiment(preset, [*FEW, *more, f"task.name={source}"], out=str(tmp_path), workers=1)
    named, folder = claim_folder(experiment, exact=True)
    run_inline(named)
    assert read_json(RunFolder(folder.path).summary)["rounds"] == 1


@pytest.mark.parametrize("name", [name for name in preset_names() if not name.startswith(("digits", "tabular"))])
def test_a_papers_preset_clips_nothing_even_on_real_nodes(name: str) -> None:
    keys = ["strategy.name=fedavg", "strategy.base=default"]
    assert make_experiment(name, keys, deployed=True).client.clip == "off"
