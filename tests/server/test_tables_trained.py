"""The embedded table: strategies, attacks, adversarial training and every model, in whole federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.federations import rounds, run, tiny
from thistle.attacks.checks import check_attack
from thistle.attacks.registry import attacks
from thistle.client.calibrated import local_loss
from thistle.client.work import Work
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_json
from thistle.experiments.settings import Model
from thistle.protocol.layout import to_record
from thistle.protocol.training import TrainRequest
from thistle.tasks.models import build_model
from thistle.tasks.task import cached_task, check_inputs

TABLE = {
    "task.name": "breast-cancer",
    "task.clients": 3,
    "client.per-round": 3,
    "task.partition": "iid",
    "task.server-data": "holdout:40",
    "client.lr": 0.05,
    "rounds": 6,
    "evaluate.every": 6,
}
FLIP = {"attack.kind": "sign-flip", "attack.clients": "2", "attack.strength": 5.0, "stop.lost-rounds": 0}


def accuracy(tmp_path: Path, **more: Any) -> float:
    return float(read_json(run(tiny(tmp_path, **{**TABLE, **more})).summary)["last_accuracy"])


def test_rofsl_withstands_a_site_that_flips_signs_and_fedavg_does_not(tmp_path: Path) -> None:
    assert accuracy(tmp_path, **{"strategy.name": "rofsl", **FLIP, "run.name": "rofsl"}) > 0.9
    assert accuracy(tmp_path, **{"strategy.name": "fedavg", **FLIP, "run.name": "fedavg"}) < 0.7


@pytest.mark.parametrize("kind", ["label-flip", "alie", "gaussian"])
def test_attacks_that_are_not_about_images_run(tmp_path: Path, kind: str) -> None:
    keys = {**TABLE, "rounds": 1, "attack.kind": kind, "attack.clients": "2"}
    (line,) = rounds(run(tiny(tmp_path, **keys)))
    assert line["accepted"] == 3


def test_attacks_on_images_are_refused() -> None:
    stamping = [kind for kind, cls in attacks().items() if cls.stamps]
    assert {"backdoor", "dba", "a3fl", "edge-case", "neurotoxin"} <= set(stamping)
    wanted = Experiment.of({"attack.kind": "backdoor", "attack.clients": "1"}).attack
    with pytest.raises(UserError, match=r"attack\.kind = backdoor: changes images; the task's inputs are 30"):
        check_attack(wanted, 3, 1, 2, (30,))
    check_attack(wanted, 3, 1, 2, (1, 8, 8))


def test_augmentation_is_refused() -> None:
    wanted = Experiment.of({**TABLE, "client.augment": True})
    with pytest.raises(UserError, match=r"client\.augment = true: crops and mirrors images; the task's inputs are 30"):
        check_inputs(wanted, cached_task(wanted.task, 0))


def test_adversarial_examples_of_rows_leave_0_to_1(tmp_path: Path) -> None:
    """The ball is in scaled units, and nothing cuts a value below 0 or above 1."""
    wanted = Experiment.of({**TABLE, "client.objective": "pgd", "client.epsilon": 0.3, "client.step": 0.1})
    task = cached_task(wanted.task, 0)
    network = build_model(Model(name="mlp"), task.shape, task.classes, 0)
    arrays = to_record(network.state_dict())
    work = Work(wanted, task, 0, TrainRequest(1), arrays, torch.device("cpu"))
    rows, labels = work.data()
    seen: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    local_loss(work, labels)(network, rows[:20], labels[:20])
    moved = (seen[-1] - rows[:20]).abs()
    assert float(seen[-1].min()) < -0.5 and float(seen[-1].max()) > 1.0
    assert 0.29 < float(moved.max()) < 0.3001 and float(moved.mean()) > 0.1


def test_adversarial_training_and_robustness_in_a_whole_run(tmp_path: Path) -> None:
    more = {"strategy.name": "calfat", "client.steps": 2, "evaluate.attacks": "natural,pgd5", "rounds": 3}
    (line,) = [one for one in rounds(run(tiny(tmp_path, **{**TABLE, **more}))) if "robust" in one]
    assert line["robust"]["natural"] >= line["robust"]["pgd5"] > 0.5


@pytest.mark.parametrize("name", ["auto", "mlp", "logistic", "cnn1d"])
@pytest.mark.parametrize("shape", [(30,), (12, 50), (1, 12, 50), (12, 1)])
def test_networks_for_any_shape(name: str, shape: tuple[int, ...]) -> None:
    if (name, shape[-1]) == ("auto", 50) and len(shape) == 3:
        pytest.skip("read as a grey image")
    network = build_model(Model(name=name), shape, 3, 0)
    assert network(torch.zeros(2, *shape)).shape == (2, 3)


def test_others_want_images() -> None:
    with pytest.raises(UserError, match=r"model\.name = vgg8: takes images; the task's inputs are 30: use mlp"):
        build_model(Model(name="vgg8"), (30,), 2, 0)


def test_figures_are_in_the_metrics_and_the_summary(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, **{**TABLE, "rounds": 1}))
    line, summary = rounds(folder)[-1], read_json(folder.summary)
    assert line["sensitivity"] == line["class_accuracy"] == summary["sensitivity"]
    assert np.sum(line["confusion"]) == 131 and summary["auc"] == line["auc"] == np.mean(line["class_auc"])
