"""From a resolved experiment to the Flower `Strategy` that runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import is_own, make_own, wrong_result
from thistle.experiments.settings import TERMS, Value
from thistle.protocol.layout import Layout
from thistle.strategies import aggregators, steps
from thistle.strategies.classes import ClassAwareHead, Head
from thistle.strategies.filters import AngleFilter, LossFilter, ZenoFilter
from thistle.strategies.flower import WithoutBuffers, sampling
from thistle.strategies.learning import ServerData
from thistle.strategies.lowrank import CriticalParameters, LowRank, SimilarityWeighting, matrices_of
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.ranks import Ranks
from thistle.strategies.rounds import Step
from thistle.strategies.scaffold import ControlVariates
from thistle.strategies.share import MaliciousShare
from thistle.strategies.table import check_only_flower, find, parse_similarity_weights
from thistle.tasks.models import build_model
from thistle.tasks.task import Task
from thistle.tasks.training import pick_device, to_tensors

logger = logging.getLogger("thistle")


def make_strategy(experiment: Experiment, task: Task, layout: Layout) -> Strategy:
    """The strategy that a resolved experiment names."""
    name = experiment.strategy.name
    find(name)
    own = _own(experiment, layout) if is_own(name) else None
    strategy = _flower(experiment) if name.startswith("flwr-") else own
    if isinstance(strategy, Strategy):
        return WithoutBuffers(strategy, layout) if layout.buffers else strategy
    return Pipeline(
        list(_steps(experiment, layout, task.classes, strategy)),
        layout,
        _server_data(experiment, task, layout),
        per_round=experiment.client.per_round,
        seed=experiment.seed,
        weighted=bool(experiment.strategy.weighted),
        reputed=bool(experiment.strategy.reputation),
        ranks=_ranks(experiment.strategy),
        terms=_terms(experiment),
        server_statistics=experiment.strategy.batch_norm == "server",
    )


def _own(experiment: Experiment, layout: Layout) -> Strategy | list[Step]:
    """What the user's factory makes of (experiment, layout): a Flower strategy, or the steps of the aggregation."""
    key, name = "strategy.name", experiment.strategy.name
    made = make_own(name, key, experiment, layout)
    if isinstance(made, Strategy):
        check_only_flower(experiment.strategy)
        return made
    own = list(made) if isinstance(made, list | tuple) else [made]
    wrong = [step for step in own if not callable(step)]
    if wrong or not own:
        raise wrong_result(name, key, "a Flower Strategy, a step or a list of steps", wrong[0] if wrong else made)
    return own


def _ranks(wanted: Any) -> Ranks | None:
    """To which rank updates are cut; None: they stay as they are."""
    if wanted.rank == 1 and not wanted.rank_step and wanted.exchange == "full":
        return None
    return Ranks(wanted.rank, wanted.rank_step, wanted.rank_high, wanted.rank_low, wanted.exchange == "factors")


def _terms(experiment: Experiment) -> dict[str, Value]:
    """What the strategy tells its clients with every request: CalFAT's also how to train adversarially."""
    wanted: Any = experiment.strategy
    flat = experiment.flat()
    terms = {key: flat[key] for key in TERMS} if wanted.name == "calfat" else {}
    if wanted.proximal_mu:
        terms["proximal-mu"] = wanted.proximal_mu
    if wanted.class_aware:
        terms["report-classes"] = True
    return terms


def _steps(experiment: Experiment, layout: Layout, classes: int, own: list[Step] | None = None) -> Iterator[Step]:
    """cut ▶ filter ▶ pre ▶ aggregate ▶ class-aware head ▶ rate ▶ clip ▶ learn: each where the settings ask for it.

    `own`: the user's steps, in place of the aggregator.
    """
    wanted: Any = experiment.strategy
    client = experiment.client
    if _ranks(wanted) or wanted.aggregator == "dsvd":
        yield LowRank(matrices_of(layout), wanted.exchange == "factors", wanted.aggregator == "dsvd")
    filters: dict[str, Callable[[], Step]] = {
        "angle": lambda: AngleFilter(wanted.angle),
        "loss": lambda: LossFilter(wanted.rho, MaliciousShare() if wanted.theta == "auto" else wanted.theta),
        "zeno": lambda: ZenoFilter(wanted.rho, wanted.epsilon),
    }
    if wanted.filter in filters:
        yield filters[wanted.filter]()
    if wanted.pre == "nnm":
        yield steps.NearestNeighbourMixing(wanted.malicious)
    if wanted.pre == "bucketing":
        yield steps.Bucketing(experiment.seed)
    if own is not None:
        yield from own
    elif wanted.aggregator != "none":
        yield _aggregator(wanted, layout)
    if wanted.control_variates:
        yield ControlVariates(experiment.task.clients, client.epochs, client.batch_size)
    if wanted.class_aware:
        yield ClassAwareHead(Head.of(layout, classes), client.prior_delta)
    if wanted.server_lr != 1:
        yield steps.ServerRate(wanted.server_lr)
    if wanted.tau and wanted.aggregator != "centered-clipping":  # whose radius it is
        yield steps.Clip(wanted.tau)
    if wanted.gamma:
        yield steps.ServerLearning(wanted.gamma, wanted.tau)


def _aggregator(wanted: Any, layout: Layout) -> Step:
    f, trim = wanted.malicious, wanted.trim
    if wanted.aggregator == "centered-clipping":
        return steps.CenteredClipping(wanted.tau)
    if wanted.aggregator == "fltrust":
        return steps.FLTrust()
    if wanted.aggregator == "foolsgold":
        return steps.FoolsGold()
    if wanted.aggregator == "dsvd":
        return SimilarityWeighting(_alpha(wanted), wanted.scale == "relative", wanted.temperature)
    if wanted.aggregator == "fedcpa":
        return CriticalParameters(matrices_of(layout))
    rules: dict[str, tuple[steps.Rule, bool]] = {
        "mean": (lambda u, w, m: aggregators.mean(u, None if m is not None else w, mixing=m), False),
        "geometric-median": (
            lambda u, w, m: aggregators.geometric_median(u, None if m is not None else w, mixing=m),
            False,
        ),
        "median": (lambda u, w, m: aggregators.coordinate_median(u, mixing=m), True),
        "trimmed-mean": (lambda u, w, m: aggregators.trimmed_mean(u, beta=trim, mixing=m), True),
        "krum": (lambda u, w, m: aggregators.krum(u, f, mixing=m), False),
        "multi-krum": (lambda u, w, m: aggregators.multi_krum(u, f, mixing=m), False),
        "bulyan": (lambda u, w, m: aggregators.bulyan(u, f, mixing=m), True),
    }
    rule, coordinatewise = rules[wanted.aggregator]
    return steps.Aggregation(wanted.aggregator, rule, coordinatewise)


def _alpha(wanted: Any) -> tuple[float, ...] | None:
    alpha = parse_similarity_weights(wanted.similarity_weights, wanted.scale)
    if alpha and abs(sum(alpha) - 1) > 1e-6:
        logger.warning("strategy.similarity-weights = %s: the sum is %g, not 1", wanted.similarity_weights, sum(alpha))
    return alpha


def _server_data(experiment: Experiment, task: Task, layout: Layout) -> ServerData | None:
    if task.server_images is None:
        return None
    wanted: Any = experiment.strategy
    device = pick_device(experiment.runtime.device)
    pixels, labels = to_tensors(task.server_images, device)
    return ServerData(
        network=build_model(experiment.network, task.shape, task.classes, experiment.seed).to(device),
        layout=layout,
        pixels=pixels,
        labels=labels,
        epochs=wanted.server_epochs,
        batch_size=wanted.server_batch_size,
        weight_decay=experiment.client.weight_decay,
        seed=experiment.seed,
    )


def _flower(experiment: Experiment) -> Strategy:
    """One of Flower's."""
    wanted: Any = experiment.strategy
    count = experiment.client.per_round
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
    return kind(**sampling(experiment), **own)
