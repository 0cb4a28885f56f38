"""FedProx and q-FedAvg, half in the client and half in Flower, against their equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import QFedAvg
from torch import nn
from torch.nn.functional import cross_entropy

from tests.federations import rounds, run, tiny
from tests.messages import reply
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout
from thistle.strategies.build import make_strategy, resolve
from thistle.strategies.flower import Adapter
from thistle.tasks.task import cached_task
from thistle.tasks.training import Recipe, train


def test_fedprox_is_its_term() -> None:
    """min F(x) + μ/2‖x − x_t‖²: two steps of SGD by hand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    pixels, labels = torch.rand(5, 1, 2, 3), torch.randint(3, (5,))
    start = [p.detach().clone() for p in model.parameters()]
    mine = [p.detach().clone().requires_grad_() for p in model.parameters()]
    for _ in range(2):
        logits = pixels.flatten(1) @ mine[0].T + mine[1]
        distance = sum(((p - origin) ** 2).sum() for p, origin in zip(mine, start, strict=True))
        gradients = torch.autograd.grad(cross_entropy(logits, labels) + 0.7 / 2 * distance, mine)
        mine = [(p - 0.3 * g).detach().requires_grad_() for p, g in zip(mine, gradients, strict=True)]
    train(model, pixels, labels, Recipe(2, 5, 0.3, proximal_mu=0.7), torch.Generator())
    for actual, expected in zip(model.parameters(), mine, strict=True):
        torch.testing.assert_close(actual, expected)


def test_fedprox_tells_its_clients(tmp_path: object) -> None:
    chosen = {"rounds": 2, "strategy.name": "flwr-fedprox"}
    near, free = (
        rounds(run(tiny(tmp_path, name, **chosen, **{"strategy.proximal-mu": mu})))[-1]["train_loss"]  # type: ignore[arg-type]
        for name, mu in (("near", 5.0), ("free", 0.0))
    )
    assert near > free


def test_q_fedavg_is_its_equations() -> None:
    """Δ_i = F_i^q (x_t − x_i)/η, h_i = q F_i^{q−1}‖(x_t − x_i)/η‖² + F_i^q/η, x_{t+1} = x_t − ΣΔ_i/Σh_i."""
    q, eta = 0.4, 0.05
    experiment = resolve(
        Experiment.of(
            {"strategy.name": "flwr-qfedavg", "strategy.q": q, "client.lr": eta, "model.name": "mlp", "task.clients": 5}
            | {"client.per-round": 3}
        )
    )
    strategy = make_strategy(experiment, cached_task(experiment.task, 0), Layout.of(nn.Linear(2, 2)))
    assert isinstance(strategy, Adapter) and isinstance(strategy.inner, QFedAvg)
    rng = np.random.default_rng(0)
    sent = rng.normal(size=(4, 3))
    models, losses = rng.normal(size=(3, 4, 3)), np.array([0.5, 2.0, 1.3])

    class Nodes:
        def get_node_ids(self) -> list[int]:
            return list(range(5))

    config = ConfigRecord({})
    strategy.configure_train(1, ArrayRecord([sent]), config, Nodes())  # type: ignore[arg-type]
    replies = [
        reply(
            i,
            RecordDict(
                {
                    "arrays": ArrayRecord([model]),
                    "metrics": MetricRecord({"num-examples": 10 + i, "loss-before": loss, "loss-after": 9.0}),
                }
            ),
        )
        for i, (model, loss) in enumerate(zip(models, losses, strict=True))
    ]
    aggregate, _ = strategy.inner.aggregate_train(1, replies)
    assert aggregate is not None
    steps = (sent - models) / eta
    deltas = losses[:, None, None] ** q * steps
    h = q * losses ** (q - 1) * (steps**2).sum(axis=(1, 2)) + losses**q / eta
    assert aggregate["0"].numpy() == pytest.approx(sent - deltas.sum(axis=0) / h.sum(), rel=1e-6)
