"""CalFAT over its bases, SCAFFOLD's control variates, class-aware heads, heterogeneity."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

from tests.client.test_malicious import Client
from tests.federations import TINY, model_sha, rounds, run, tiny
from tests.strategies.test_table import TASK, experiment
from thistle.client import malicious
from thistle.client.work import Work
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_lines
from thistle.protocol.layout import CONTROL, Layout, to_record
from thistle.protocol.training import TrainRequest
from thistle.server.recording.checkpoint import load_checkpoint
from thistle.strategies import aggregators, steps
from thistle.strategies.build import make_strategy, needs_server_data, resolve
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import strategies
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.class_aware import ClassAwareHead, Head, class_weights
from thistle.strategies.steps.control_variates import ControlVariates, control_records
from thistle.tasks.models import build_model
from thistle.tasks.task import cached_task
from thistle.tasks.training import Recipe, train

PIPELINES = [name for name in strategies() if name != "calfat" and not name.startswith("flwr-")]


AWARE = [name for name, cls in strategies().items() if hasattr(cls, "class_aware") and name != "zeno"]
"""Zeno is a mean, too, but needs server data."""


def make_round(ids: tuple[int, ...], d: int, **more: Any) -> Round:
    n = len(ids)
    examples = more.pop("examples", [10] * n)
    return Round(
        1,
        ids,
        torch.full((n,), 1 / n, dtype=torch.float64),
        torch.zeros(d),
        more.pop("lr", 0.1),
        None,
        more.pop("memory", {}),
        examples=torch.tensor(examples, dtype=torch.float64),
        **more,
    )


class TestScaffold:
    """Against the equations, step by step."""

    def test_a_client_steps_by_g_minus_own_plus_common(self) -> None:
        """y ← y − η(g − c_i + c), with weight decay and several batches, against a loop of its own."""
        torch.manual_seed(0)
        network, pixels, labels = (
            nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
            torch.rand(10, 1, 2, 2),
            torch.arange(10) % 3,
        )
        shift = [torch.randn(3, 4), torch.randn(3)]
        weight, bias = (parameter.detach().clone() for parameter in network.parameters())
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            for batch in torch.randperm(10, generator=generator).split(4):
                w, b = weight.clone().requires_grad_(True), bias.clone().requires_grad_(True)
                loss = nn.functional.cross_entropy(pixels[batch].flatten(1) @ w.T + b, labels[batch])
                gw, gb = torch.autograd.grad(loss, (w, b))
                weight -= 0.1 * (gw + 0.01 * weight + shift[0])
                bias -= 0.1 * (gb + 0.01 * bias + shift[1])
        train(
            network, pixels, labels, Recipe(2, 4, 0.1, weight_decay=0.01), torch.Generator().manual_seed(1), shift=shift
        )
        torch.testing.assert_close(network[1].weight.detach(), weight)
        torch.testing.assert_close(network[1].bias.detach(), bias)

    def test_the_server_follows_option_two(self) -> None:
        """Three rounds of the step against the equations written out, clients coming and going."""
        d, clients, lr, epochs, batch = 5, 6, 0.2, 3, 4
        rng = np.random.default_rng(0)
        step = ControlVariates(clients, epochs, batch)
        memory: dict[str, np.ndarray] = {}
        c, own = np.zeros(d), {}
        for ids in ((0, 2, 5), (1, 2), (0, 1, 2, 5)):
            updates = torch.from_numpy(rng.normal(size=(len(ids), d)).astype(np.float32))
            examples = [int(rng.integers(1, 30)) for _ in ids]
            round_ = make_round(ids, d, examples=examples, lr=lr, memory=memory)
            dropped = torch.tensor([client == 5 and len(ids) == 4 for client in ids])
            progress = step(round_, Progress.begin(updates).drop(dropped, "loss"))
            memory |= progress.notes
            total = np.zeros(d)
            for client, update, size, gone in zip(ids, updates.double().numpy(), examples, dropped, strict=True):
                if gone:
                    continue
                before = own.get(client, np.zeros(d))
                own[client] = before - c - update / (epochs * math.ceil(size / batch) * lr)
                total += own[client] - before
            c = c + total / clients
            np.testing.assert_allclose(memory[CONTROL], c, rtol=1e-4, atol=1e-5)
            for client, value in own.items():
                np.testing.assert_allclose(memory[f"{CONTROL}/{client}"], value, rtol=1e-4, atol=1e-5)
        assert memory.keys() == {CONTROL, *(f"{CONTROL}/{client}" for client in (0, 1, 2, 5))}, "lazily"

    def test_what_is_sent(self) -> None:
        memory = {CONTROL: np.array([1.0, 2.0], np.float32), f"{CONTROL}/3": np.array([0.5, 0.5], np.float32)}
        assert control_records({}, [1, 3]) == {}
        records = control_records(memory, [1, 2, 3])
        assert records[1] is records[2]
        assert records[1][CONTROL].numpy().tolist() == [1.0, 2.0] and records[3][CONTROL].numpy().tolist() == [0.5, 1.5]

    def test_a_whole_round_of_a_federation(self, tmp_path: Path) -> None:
        """Two rounds: c_i, c and the model of the second from the first one's replies."""
        keys = {**TINY, "strategy.name": "scaffold", "client.per-round": 12, "client.weight-decay": 0.0}
        folder = run(
            tiny(
                tmp_path,
                **{"strategy.name": "scaffold", "client.per-round": 12, "rounds": 1},
                **{"client.weight-decay": 0.0},
            )
        )
        federation = Client(keys)
        task = cached_task(federation.experiment.task, 0)
        updates = [federation.update(client) for client in range(12)]
        saved = load_checkpoint(folder.checkpoints)
        assert saved is not None
        own = []
        for client, update in enumerate(updates):
            k = math.ceil(len(task.client_images(client)) / 25)
            own.append(-update / (k * 0.1))
            found = torch.from_numpy(saved.arrays[f"strategy/{CONTROL}/{client}"].copy())
            torch.testing.assert_close(found, own[-1], atol=1e-4, rtol=1e-4)
        common = torch.from_numpy(saved.arrays[f"strategy/{CONTROL}"].copy())
        torch.testing.assert_close(common, torch.stack(own).sum(0) / 12, atol=1e-4, rtol=1e-4)

    def test_packing_and_resuming_do_not_change_the_model(self, tmp_path: Path) -> None:
        keys = {"strategy.name": "calfat", "strategy.base": "scaffold", "rounds": 3, "client.steps": 2}
        shas = {model_sha(run(tiny(tmp_path, f"w{n}", **keys, **{"runtime.workers": n}))) for n in (1, 2, 5)}
        run(tiny(tmp_path, "halves", **{**keys, "rounds": 2}))
        shas.add(model_sha(run(tiny(tmp_path, "halves", **keys, **{"run.resume": True}))))
        assert len(shas) == 1

    def test_colluders_do_not_depend_on_packing(self) -> None:
        """A client that trains the panel first on a host: its own control variate must not get into it."""
        federation = Client({**TINY, "attack.kind": "alie", "attack.fraction": 0.5})
        task = cached_task(federation.experiment.task, 0)
        arrays = to_record(federation.model.state_dict())
        work = Work(federation.experiment, task, 1, TrainRequest(1, 0.1), arrays, torch.device("cpu"))
        found = []
        for control in (None, torch.ones(federation.layout.size)):
            malicious._last_panel.clear()
            found.append(malicious.panel_updates(replace(work, control=control), [(1, 0), (2, 0)]))
        assert torch.equal(*found)

    def test_control_variates_count_as_sent(self, tmp_path: Path) -> None:
        one, two = rounds(run(tiny(tmp_path, **{"strategy.name": "scaffold", "rounds": 2})))
        assert 1.9 < two["bytes_down"] / one["bytes_down"] < 2.1

    def test_it_takes_the_drift_out(self, tmp_path: Path) -> None:
        keys = {"rounds": 4, "task.alpha": 0.1, "client.epochs": 3, "client.per-round": 12, "strategy.weighted": False}
        spread = {
            name: rounds(run(tiny(tmp_path, name, **keys, **{"strategy.name": name})))[-1]["clients.heterogeneity"]
            for name in ("fedavg", "scaffold")
        }
        assert spread["scaffold"] < 0.7 * spread["fedavg"]


class TestClassAwareHeads:
    """Rows of the head, class by class."""

    def test_against_a_naive_loop(self) -> None:
        network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        layout = Layout.of(network)
        rng = np.random.default_rng(1)
        counts = np.array([[5, 0, 0], [2, 8, 0], [0, 0, 3], [9, 9, 9]])
        updates = torch.from_numpy(rng.normal(size=(4, layout.size)).astype(np.float32))
        kept = torch.tensor([True, True, True, False])
        round_ = make_round(
            (0, 1, 2, 3), layout.size, examples=counts.sum(1).tolist(), class_counts=torch.tensor(counts), layout=layout
        )
        mean = steps.Aggregation("mean", aggregators.mean)
        before = mean(round_, Progress.begin(updates).drop(~kept, "loss"))
        after = ClassAwareHead(1e-3)(round_, before)
        states = [layout.state(update, {}) for update in updates]
        expected = layout.state(before.step, {})
        for c in range(3):
            weights = [counts[i, c] / counts[i].sum() + 1e-3 for i in range(3)]
            for name in ("2.weight", "2.bias"):
                row = sum(w * states[i][name][c].double() for i, w in enumerate(weights)) / sum(weights)
                expected[name] = expected[name].clone()
                expected[name][c] = row.float()
        found = layout.state(after.step, {})
        for name in found:
            torch.testing.assert_close(found[name], expected[name])
        assert torch.equal(found["0.weight"], layout.state(before.step, {})["0.weight"])

    def test_weights(self) -> None:
        counts, examples = torch.tensor([[10, 0], [0, 30]]), torch.tensor([10.0, 30.0])
        weights = class_weights(counts, examples, 1e-3, examples / 40)  # a mean by data size
        torch.testing.assert_close(weights.sum(0), torch.ones(2, dtype=torch.float64))
        assert float(weights[1, 0]) == pytest.approx(0.03 / (10.01 + 0.03)) and float(weights[1, 1]) > 0.99

    def test_whom_the_rule_distrusts_has_no_more_say_in_a_row(self) -> None:
        """Both have only class 0. The second claims a thousand times the examples, and the rule gives it 1 %."""
        rules = torch.tensor([0.99, 0.01], dtype=torch.float64)
        weights = class_weights(torch.tensor([[10, 0], [10_000, 0]]), torch.tensor([10.0, 10_000.0]), 1e-3, rules)
        torch.testing.assert_close(weights[:, 0], rules)

    @pytest.mark.parametrize("name", AWARE)
    def test_where_all_have_the_same_classes_the_head_is_the_rules_own(self, name: str) -> None:
        """That is so only if the rule's aggregate is the sum of the updates times the weights that it reports."""
        layout = Layout.of(nn.Linear(6, 3))
        updates = torch.randn(9, layout.size, generator=torch.Generator().manual_seed(1)) / 9 + 0.1
        needs_no_server = {"rofsl": {"filter": "none", "gamma": 0.0}, "fsl": {"gamma": 0.0}}
        chosen = {**needs_no_server, "evidence": {"anchor": "majority"}}.get(name, {})
        cls: Any = strategies()[name]
        found = []
        for aware in (False, True):
            pipeline = cls(class_aware=aware, lr=0.1, num_clients=9, **chosen)
            pipeline.layout = layout
            round_ = make_round(
                tuple(range(9)),
                layout.size,
                ranks=torch.full((9,), 0.5, dtype=torch.float64),
                examples=[30.0] * 9,
                class_counts=torch.full((9, 3), 10),
                layout=layout,
                memory={},
            )
            progress = Progress.begin(updates.clone())
            for step in pipeline.plan:
                progress = step(round_, progress)
            found.append(progress.step)
        torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
        assert float(found[0].norm()) > 0.01

    @pytest.mark.parametrize("base", ["rfa", "rofsl", "evidence"])
    def test_over_a_robust_base(self, tmp_path: Path, base: str) -> None:
        keys = {"strategy.name": "calfat", "strategy.base": base, "rounds": 2, "client.steps": 2}
        aware = run(tiny(tmp_path, "aware", **keys, **{"strategy.class-aware": True}))
        assert not any("kept" in line for line in rounds(aware))
        assert model_sha(aware) != model_sha(run(tiny(tmp_path, "plain", **keys)))

    @pytest.mark.parametrize("name", ["mlp", "cnn-cifar", "vgg8", "resnet18"])
    @pytest.mark.parametrize("calibration", ["none", "robal"])
    def test_the_head_is_found(self, name: str, calibration: str) -> None:
        wanted = Experiment.of({"model.name": name, "client.calibration": calibration}).network
        head = Head.of(Layout.of(build_model(wanted, (3, 8, 8), 7, 0)), 7)
        assert head.classes == 7 and (head.bias is None) == (calibration == "robal")

    def test_a_model_without_one_is_refused(self) -> None:
        for network in (nn.Conv2d(1, 3, 3), nn.Linear(4, 6)):
            with pytest.raises(UserError, match="linear layer of 3 rows"):
                Head.of(Layout.of(network), 3)

    def test_in_a_federation(self, tmp_path: Path) -> None:
        keys = {"strategy.name": "calfat", "rounds": 2, "client.steps": 2}
        aware = run(tiny(tmp_path, "aware", **keys, **{"strategy.class-aware": True}))
        assert {v["verdict"] for v in read_lines(aware.verdicts)} == {"accepted"}
        assert model_sha(aware) != model_sha(run(tiny(tmp_path, "plain", **keys)))

    def test_counts_are_sent_only_when_asked(self) -> None:
        client = Client(TINY)
        assert "class-counts" not in client.reply(0).metric_records["metrics"]


class TestCalFAT:
    """The strategy over its bases."""

    @pytest.mark.parametrize("base", PIPELINES)
    def test_it_is_its_base(self, base: str) -> None:
        chosen = {"name": "calfat", "base": base}
        over, alone = resolve(experiment(**chosen)), resolve(experiment(name=base))
        keys = [
            key for key in over.flat() if key.startswith("strategy.") and key not in ("strategy.name", "strategy.base")
        ]
        assert {key: over.flat()[key] for key in keys} == {key: alone.flat()[key] for key in keys}
        assert needs_server_data(over) == needs_server_data(alone)
        layout = Layout.of(nn.Linear(2, 2))
        one, other = make_strategy(over, TASK, layout), make_strategy(alone, TASK, layout)
        assert isinstance(one, Pipeline) and isinstance(other, Pipeline)
        assert [type(step) for step in one.plan] == [type(step) for step in other.plan]

    def test_it_trains_as_its_paper_says_unless_told_otherwise(self) -> None:
        client = resolve(experiment(name="calfat")).client
        assert (client.objective, client.calibration) == ("ckl", "calfat")
        told = resolve(experiment(name="calfat", **{"client.objective": "trades"})).client
        assert (told.objective, told.calibration) == ("trades", "none")
        told = resolve(experiment(name="calfat", **{"client.calibration": "logit-adjust"})).client
        assert (told.objective, told.calibration) == ("standard", "logit-adjust")

    def test_it_sends_the_adversarial_settings(self, tmp_path: Path) -> None:
        """Clients whose run config was never resolved train as those whose was."""
        unresolved = tiny(tmp_path, "unresolved", **{"strategy.name": "calfat", "rounds": 1})
        assert unresolved.client.objective == "standard"
        keys = {"client.objective": "ckl", "client.calibration": "calfat", "rounds": 1}
        assert model_sha(run(unresolved)) == model_sha(run(tiny(tmp_path, "fedavg", **keys)))

    def test_fedprox_reaches_the_clients(self, tmp_path: Path) -> None:
        keys: dict[str, Any] = {"strategy.name": "fedprox", "rounds": 1}
        near = model_sha(run(tiny(tmp_path, "near", **keys, **{"strategy.proximal-mu": 1.0})))
        assert near != model_sha(run(tiny(tmp_path, "far", **keys, **{"strategy.proximal-mu": 0.0})))

    def test_requests_share_the_model(self) -> None:
        strategy = make_strategy(resolve(experiment(name="scaffold")), TASK, Layout.of(nn.Linear(2, 2)))
        assert isinstance(strategy, Pipeline)
        strategy.memory |= {CONTROL: np.ones(6, np.float32), f"{CONTROL}/1": np.ones(6, np.float32)}
        from tests.strategies.test_pipeline import Nodes

        arrays = to_record(nn.Linear(2, 2).state_dict())
        messages = list(strategy.configure_train(1, arrays, ConfigRecord({"lr": 0.1}), Nodes(7)))  # type: ignore[arg-type]
        assert all(message.content.array_records["arrays"] is arrays for message in messages)
        assert [float(m.content.array_records[CONTROL][CONTROL].numpy()[0]) for m in messages] == [1, 0, 1, 1, 1, 1, 1]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "momentum": ({"name": "scaffold", "client.momentum": 0.9}, "client.momentum = 0.9: SCAFFOLD's control variates"),
    "momentum below": (
        {"name": "calfat", "base": "scaffold", "client.momentum": 0.5},
        "client.momentum = 0.5: SCAFFOLD's control variates",
    ),
    "median": (
        {"name": "calfat", "base": "median", "class-aware": True},
        "strategy.class-aware = true: calfat has no such setting; those that have it: fedavg, rofsl, dsvd, calfat",
    ),
    "mixing": (
        {"name": "fedavg", "pre": "bucketing", "class-aware": True},
        "strategy.pre = bucketing: strategy.class-aware needs each client's own update; use none",
    ),
    "Flower's": (
        {"name": "flwr-fedavg", "class-aware": True},
        "strategy.class-aware = true: flwr-fedavg has no such setting",
    ),
    "its own base": ({"name": "calfat", "base": "calfat"}, "strategy.base = 'calfat': should be one of fedavg"),
    "Flower's base": ({"name": "calfat", "base": "flwr-fedavg"}, "strategy.base = 'flwr-fedavg': should be one of"),
    "no calfat": (
        {"name": "fedavg", "base": "rofsl"},
        "strategy.base = rofsl: fedavg has no such setting; those that have it: calfat",
    ),
    "zeno": ({"name": "zeno", "control-variates": True}, "strategy.filter = zeno: SCAFFOLD's control variates need"),
    "base without data": (
        {"name": "calfat", "base": "rofsl", "task.server-data": "none"},
        "strategy.filter = loss needs server data",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_work_is_refused_in_one_line(case: str) -> None:
    keys, message = CASES[case]
    with pytest.raises(UserError) as refused:
        resolve(experiment(**keys))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("n", "d"), [(2, 7), (5, 1000), (3, 70_000)])
def test_heterogeneity_is_the_sample_variance(n: int, d: int) -> None:
    updates = torch.from_numpy(np.random.default_rng(n).normal(3.0, 1.0, size=(n, d)).astype(np.float32))
    assert aggregators.sample_variance(updates) == pytest.approx(float(updates.double().var(0).sum()), rel=1e-6)


def test_one_client_has_no_spread() -> None:
    assert aggregators.sample_variance(torch.ones(1, 5)) == 0.0


def test_heterogeneity_is_recorded_every_round(tmp_path: Path) -> None:
    assert all(line["clients.heterogeneity"] > 0 for line in rounds(run(tiny(tmp_path, rounds=2))))
