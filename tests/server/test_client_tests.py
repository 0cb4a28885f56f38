"""Accuracy by class and on each honest client's own test split: by hand, and by an obvious second way."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.federations import rounds, run, timeless, tiny
from tests.server.test_federation import Killed, MortalGrid
from thistle.attacks.roles import attackers
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.server import client_tests
from thistle.server.client_tests import ClientTests
from thistle.server.evaluation import class_accuracy
from thistle.tasks.models import build_model
from thistle.tasks.task import Task, prepare_task

ATTACK = {"attack.kind": "sign-flip", "attack.fraction": 0.25, "task.partition": "dirichlet-even", "task.alpha": 0.3}


def task_of(train: list[int], shares: list[list[int]], test: list[int], classes: int) -> Any:
    """Labels alone, and who holds which of them."""
    sets = {"train": train, "test": test}
    images = SimpleNamespace(**{k: SimpleNamespace(labels=np.array(v, dtype=np.int64)) for k, v in sets.items()})

    class Shares(list[list[int]]):
        def indices(self, client: int) -> np.ndarray:
            return np.array(self[client], dtype=np.int64)

    return SimpleNamespace(dataset=images, partition=Shares(shares), classes=classes)


def predictions(folder: RunFolder, experiment: Experiment, task: Task) -> np.ndarray:
    """What the final model takes each test image for, one image at a time."""
    import torch

    model = build_model(experiment.network, task.shape, task.classes, experiment.seed)
    model.load_state_dict(load_file(folder.model))
    model.eval()
    pixels = torch.from_numpy(np.array(task.dataset.test.pixels)).float() / 255
    with torch.no_grad():
        return np.array([int(model(one[None]).argmax()) for one in pixels])


def test_every_number_of_a_run_again_from_its_model(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **ATTACK)
    folder = run(experiment)
    task = prepare_task(experiment.task, experiment.seed, False)
    labels, found = np.array(task.dataset.test.labels), predictions(folder, experiment, task)
    summary, line = read_json(folder.summary), rounds(folder)[-1]

    each = [fmean(found[labels == label] == label) for label in range(10)]
    assert line["class_accuracy"] == pytest.approx(each)

    bad = attackers(experiment.attack, 12, experiment.seed)
    tests = ClientTests.draw(task, bad, experiment.seed)
    assert tests is not None and len(bad) == 3
    splits = list(tests)
    honest = [client for client in range(12) if client not in bad]
    assert len(splits) == len(honest) == 9
    for client, split in zip(honest, splits, strict=True):
        own = np.array(task.dataset.train.labels)[task.partition.indices(client)]
        assert len(set(split.tolist())) == len(split)
        held, have = np.bincount(own, minlength=10), np.bincount(labels[split], minlength=10)
        assert ((held > 0) == (have > 0)).all()
        least, most = ((have[held > 0] - less) / held[held > 0] for less in (1, 0))
        assert least.max() < most.min() <= 1, "all classes to the same scale, rounded up"
    ranked = sorted(fmean(found[split] == labels[split]) for split in splits)
    assert line["client_accuracy"]["worst"] == ranked[0]
    assert line["client_accuracy"]["mean"] == pytest.approx(fmean(ranked))
    assert line["client_accuracy"]["p10"] == pytest.approx(ranked[0] + 0.8 * (ranked[1] - ranked[0]))  # (9 − 1) · 0.1
    assert (summary["class_accuracy"], summary["client_accuracy"]) == (line["class_accuracy"], line["client_accuracy"])


def test_a_split_by_hand() -> None:
    test = [0] * 4 + [1] * 3 + [2]
    task = task_of([0] * 8 + [1] * 2 + [3], [[0, 1, 8], list(range(10)), [10], []], test, 4)
    tests = ClientTests.draw(task, {0}, seed=5)
    assert tests is not None
    (split,) = tests  # client 0 attacks, 2 has only what the test set lacks, 3 has nothing
    assert np.bincount(np.array(test)[split]).tolist() == [4, 1], "8 and 2, halved: there are only four zeros"
    right = np.array([True, True, False, False, True, True, False, False])
    assert tests.measure(right) == dict.fromkeys(("worst", "p10", "mean"), right[split].mean())
    assert ClientTests.draw(task, {0, 1}, seed=5) is None


def test_who_holds_all_gets_all_in_any_order_of_clients() -> None:
    test = [0, 0, 1, 1]
    tests = ClientTests.draw(task_of([0, 0, 1, 1, 1], [[0, 1, 2, 3], [2], [2]], test, 2), set(), seed=0)
    assert tests is not None
    whole, one, two = tests
    assert sorted(whole.tolist()) == [0, 1, 2, 3] and len(one) == len(two) == 1
    without = ClientTests.draw(task_of([0, 0, 1, 1, 1], [[0, 1, 2, 3], [2], [2]], test, 2), {0, 1}, seed=0)
    assert without is not None and next(iter(without)).tolist() == two.tolist(), "a split is a client's own"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6), st.integers(0, 3))
def test_splits_never_ask_for_more_than_there_is(counts: list[tuple[int, int]], seed: int) -> None:
    held, available = (np.array(column) for column in zip(*counts, strict=True))
    train, test = (np.repeat(np.arange(len(counts)), numbers).tolist() for numbers in (held, available))
    tests = ClientTests.draw(task_of(train, [list(range(len(train)))], test, len(counts)), set(), seed)
    there = np.where(available > 0, held, 0)
    if tests is None:
        assert not there.any()
        return
    have = np.bincount(np.array(test, dtype=np.int64)[tests.flat], minlength=len(counts))
    assert (have <= np.minimum(held, available)).all() and ((have > 0) == (there > 0)).all()
    scale = min([1.0, *(a / h for a, h in zip(available, there, strict=True) if h)])
    assert np.allclose(np.ceil(scale * there - 1e-9), have)


def test_of_many_clients_the_seed_chooses_some(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of([0, 1] * 20, [[i] for i in range(40)], [0, 1], 2)
    assert client_tests.MOST == 1000
    monkeypatch.setattr(client_tests, "MOST", 10)
    chosen = {seed: client_tests._measured(40, {0, 1}, seed).tolist() for seed in (0, 1)}
    assert len(set(chosen[0])) == len(chosen[0]) == 10 and not {0, 1} & set(chosen[0])
    assert chosen[0] != chosen[1] and chosen[0] == client_tests._measured(40, {1, 0}, 0).tolist()
    tests = ClientTests.draw(task, {0, 1}, 0)
    assert tests is not None and len(tests.sizes) == 10


def test_a_class_without_test_images_has_no_accuracy() -> None:
    right, labels = np.array([True, False, True]), np.array([0, 0, 3])
    assert class_accuracy(right, labels, 5) == [0.5, None, None, 1.0, None]


def test_a_resumed_run_writes_the_same_lines(tmp_path: Path) -> None:
    chosen = {**ATTACK, "attack.kind": "backdoor", "attack.stop": 2, "evaluate.every": 1}
    whole, broken = run(tiny(tmp_path, "whole", **chosen)), tiny(tmp_path, "broken", **chosen)
    with pytest.raises(Killed):
        run(broken, MortalGrid(broken, 3))
    resumed = run(tiny(tmp_path, "broken", **chosen, **{"run.resume": True}))
    assert timeless(resumed) == timeless(whole) and "client_accuracy" in rounds(whole)[0]
    one, two = ({k: v for k, v in read_json(f.summary).items() if "seconds" not in k} for f in (resumed, whole))
    assert one == {**two, "name": "broken"}


def test_without_an_honest_client_there_is_nothing_to_measure(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, rounds=1, **{"attack.kind": "zero", "attack.fraction": 1.0, "stop.lost-rounds": 0}))
    assert "class_accuracy" in rounds(folder)[0] and "client_accuracy" not in rounds(folder)[0]
    assert "client_accuracy" not in read_json(folder.summary)
