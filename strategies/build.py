"""From a resolved experiment to the Flower `Strategy` that runs it."""

from __future__ import annotations

from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from exchange.experiment import Experiment
from exchange.layout import Layout
from strategies.pipeline import Pipeline
from strategies.rounds import Step
from strategies.steps import Mean, ServerRate
from strategies.table import find


def make_strategy(experiment: Experiment, layout: Layout) -> Strategy:
    """The strategy that a resolved experiment names."""
    find(experiment.strategy.name)
    if experiment.strategy.name.startswith("flwr-"):
        return _flower(experiment)
    return _pipeline(experiment, layout)


def _pipeline(experiment: Experiment, layout: Layout) -> Strategy:
    wanted: Any = experiment.strategy
    steps: list[Step] = [Mean()]
    if wanted.server_lr != 1:
        steps.append(ServerRate(wanted.server_lr))
    return Pipeline(steps, layout, experiment.client.per_round, experiment.seed, wanted.weighted)


def _flower(experiment: Experiment) -> Strategy:
    """One of Flower's, told to sample exactly `client.per-round` clients and to leave evaluation to us."""
    wanted: Any = experiment.strategy
    count = experiment.client.per_round
    common: dict[str, Any] = {
        "fraction_train": count / experiment.task.clients,
        "min_train_nodes": count,
        "min_available_nodes": count,
        "fraction_evaluate": 0.0,
    }
    malicious = {"num_malicious_nodes": wanted.malicious}
    kinds: dict[str, tuple[type[Strategy], dict[str, Any]]] = {
        "flwr-fedavg": (flower.FedAvg, {}),
        "flwr-fedavgm": (flower.FedAvgM, {"server_learning_rate": wanted.server_lr, "server_momentum": 0.9}),
        "flwr-fedprox": (flower.FedProx, {"proximal_mu": wanted.proximal_mu}),
        "flwr-fedadam": (flower.FedAdam, {"eta": wanted.server_lr}),
        "flwr-fedyogi": (flower.FedYogi, {"eta": wanted.server_lr}),
        "flwr-fedmedian": (flower.FedMedian, {}),
        "flwr-fedtrimmedavg": (flower.FedTrimmedAvg, {"beta": wanted.trim}),
        "flwr-krum": (flower.Krum, malicious),
        "flwr-multikrum": (
            flower.MultiKrum,
            {**malicious, "num_nodes_to_select": max(1, count - wanted.malicious)},
        ),
        "flwr-bulyan": (flower.Bulyan, malicious),
        "flwr-qfedavg": (
            flower.QFedAvg,
            {"client_learning_rate": experiment.client.lr, "q": wanted.q, "train_loss_key": "loss-before"},
        ),
    }
    kind, own = kinds[experiment.strategy.name]
    return kind(**common, **own)
