"""The cheap part of examples/three-hospitals, in this process: its data, its experiment, and the exported model."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.federations import model_sha, run
from thistle.experiments.experiment import Experiment, read_file
from thistle.experiments.runfolder import RunFolder
from thistle.results.export import export_run
from thistle.strategies.build import resolve
from thistle.tasks.sources import read_source

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "three-hospitals"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    home = tmp_path_factory.mktemp("hospitals")
    runpy.run_path(str(EXAMPLE / "prepare.py"))["main"](home / "data")
    where = dict.fromkeys(("task.name", "task.server-data"), f"npz:{home}/data/server.npz")
    flat = {**read_file(EXAMPLE / "experiment.toml"), **where, "rounds": 2, "client.epochs": 1}
    return run(resolve(Experiment.of({**flat, "run.out": str(home), "run.name": "first", "runtime.workers": 1})))


def test_every_hospital_has_its_own_and_nobody_anothers(trained: RunFolder) -> None:
    data = trained.path.parent / "data"
    sources = [f"npz:{data}/north.npz", f"npz:{data}/south.npz", f"folder:{data}/east", f"npz:{data}/server.npz"]
    images = [read_source(source, need_test=False, key="--data").train for source in sources]
    assert [len(one) for one in images] == [400, 400, 400, 100]
    assert {one.shape for one in images} == {(1, 8, 8)}


@pytest.mark.parametrize("form", ["torchscript", "safetensors", "onnx"])
def test_what_is_exported_runs_elsewhere(trained: RunFolder, form: str, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    made = export_run(str(trained.path), form, tmp_path)
    assert "same probabilities for 200 test images" in made.checked
    card = made.card.read_text()
    assert model_sha(trained) in card and "accuracy of class 9" in card and "not a medical device" in card
    if form == "safetensors":
        assert load_file(made.model).keys() == load_file(trained.model).keys()
    if form == "torchscript":
        files = {"about.json": ""}
        with pytest.warns(DeprecationWarning, match="deprecated"):
            model = torch.jit.load(made.model, _extra_files=files)
        assert json.loads(json.loads(files["about.json"])["classes"])[9] == "9"
        images = torch.from_numpy(np.random.default_rng(1).random((5, 1, 8, 8), dtype=np.float32))
        assert torch.allclose(model(images).sum(1), torch.ones(5))
