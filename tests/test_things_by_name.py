"""A data set, a model, an objective and a calibration are entered once: lists, checks and runs follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.federations import TINY, run, tiny
from thistle.attacks.training.calibrations import CALIBRATIONS, calibration
from thistle.attacks.training.objectives import OBJECTIVES, against_labels, objective
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.experiments.registry import Registry
from thistle.experiments.runfolder import read_lines
from thistle.running.prepare import settle
from thistle.tasks.models import MODELS, Dropout, Shape
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.registry import SOURCES, Found, Wanted

ROOT = Path(__file__).resolve().parent.parent
REGISTRIES: dict[str, Registry[Any]] = {
    "tasks": SOURCES,
    "models": MODELS,
    "objectives": OBJECTIVES,
    "calibrations": CALIBRATIONS,
}
KEYS = {
    "tasks": "task.name",
    "models": "model.name",
    "objectives": "client.objective",
    "calibrations": "client.calibration",
}


@pytest.fixture
def new_entries() -> Iterator[None]:
    """One of each kind, gone again afterwards."""
    before = {kind: dict(registry.entries()) for kind, registry in REGISTRIES.items()}
    _enter()
    yield
    for kind, registry in REGISTRIES.items():
        registry._entries = before[kind]


def _enter() -> None:
    @SOURCES.add("stripes", "made for a test: stripes", "Nobody 2026")
    def stripes(wanted: Wanted) -> Found:
        def read(work: Workspace) -> tuple[str, ...]:
            labels = np.arange(120) % 2
            pixels = np.zeros((120, 1, 8, 8), dtype=np.uint8)
            pixels[labels == 1, :, ::2] = 255
            for split in ("train", "test"):
                work.put(split, pixels, labels)
            return "plain", "striped"

        return Found("stripes of a test", read, "stripes")

    @MODELS.add("one-layer", "made for a test: a layer")
    def one_layer(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

    @objective("hinge", "made for a test: margins", examples=against_labels)
    def hinge(forward: Any, pixels: Tensor, crafted: Any, labels: Tensor, setting: Any) -> Tensor:
        return torch.nn.functional.multi_margin_loss(forward(crafted.pixels), labels)

    @calibration("halved", "made for a test: half of f", "Nobody 2026")
    def halved(prior: Tensor) -> Any:
        return lambda logits, labels: logits / 2


NEW = {"tasks": "stripes", "models": "one-layer", "objectives": "hinge", "calibrations": "halved"}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_new_entry_is_listed(new_entries: None, kind: str) -> None:
    shown = CliRunner().invoke(app, ["list", kind], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert NEW[kind] in shown.output and "made for a test" in shown.output


@pytest.mark.usefixtures("new_entries", "cache")
def test_new_entries_run(tmp_path: Path) -> None:
    keys = {KEYS[kind]: name for kind, name in NEW.items()}
    folder = run(tiny(tmp_path, **keys, **{"task.server-data": "none", "client.steps": 1, "rounds": 1}))
    assert {line["verdict"] for line in read_lines(folder.verdicts)} == {"accepted"}


@pytest.mark.parametrize(
    ("kind", "typed", "near"), [("objectives", "pdg", "pgd"), ("calibrations", "rbal", "robal")], ids=str
)
def test_a_mistyped_name_is_refused_before_anything_starts(kind: str, typed: str, near: str) -> None:
    one = kind.removesuffix("s")
    expected = f"{KEYS[kind]} = {typed!r}: no such {one}; did you mean {near}? ({', '.join(REGISTRIES[kind])})"
    with pytest.raises(UserError) as refused:
        settle({KEYS[kind]: typed}, "run")
    assert str(refused.value) == expected


@pytest.mark.parametrize("keys", [{"client.objective": "pdg"}, {"client.warmup": 3}], ids=str)
def test_hosts_refuse_it_where_nobody_has_asked_the_command_line(tmp_path: Path, keys: dict[str, Any]) -> None:
    """As with `flwr run .`: the server does not know what clients train by."""
    key = next(iter(keys))
    with pytest.raises(UserError, match=rf"a host could not start: .*{re.escape(key)} = "):
        run(tiny(tmp_path, **keys))


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_entry_is_described_in_a_line(kind: str) -> None:
    for name, entry in REGISTRIES[kind].entries().items():
        assert entry.about and "\n" not in entry.about and not entry.about.endswith("."), name


@pytest.mark.parametrize("kind", ["objectives", "calibrations"])
def test_the_guide_explains_every_objective_and_calibration(kind: str) -> None:
    section = (ROOT / "docs/guide.md").read_text(encoding="utf-8").partition("## Adversarial training")[2]
    rows = re.findall(r"^\| `([a-z-]+)`", section.partition("\n## ")[0], re.MULTILINE)
    assert set(REGISTRIES[kind]) <= set(rows)


def test_the_names_that_experiments_use_stay() -> None:
    assert {"digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn"} <= set(SOURCES)
    assert {"auto", "cnn-emnist", "cnn-cifar", "cnn-calfat", "vgg8", "resnet18", "mlp"} <= set(MODELS)
    assert {"standard", "pgd", "ckl", "mix", "trades", "mart", "gairat", "fedrbn"} <= set(OBJECTIVES)
    assert {"none", "calfat", "logit-adjust", "robal"} <= set(CALIBRATIONS)
    assert TINY["model.name"] in MODELS
