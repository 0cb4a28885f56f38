"""The strategies by name: what each is, where it comes from, and its own defaults. Data only.

Ours are pipelines: the same parts with other settings. Flower's own come as `flwr-*`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment, calfat_clients
from thistle.experiments.plugins import is_own
from thistle.experiments.settings import Strategy, Value

_FEDAVG, _FEDOPT, _YIN = "McMahan et al. 2017", "Reddi et al. 2021", "Yin et al. 2018"
_KRUM, _BULYAN = "Blanchard et al. 2017", "El Mhamdi et al. 2018"
_SCAFFOLD, _CALFAT = "Karimireddy et al. 2020", "CalFAT"
_ZENO, _FLTRUST = "Xie et al. 2020 (Zeno++)", "Cao et al. 2021"


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    about: str
    paper: str
    defaults: Mapping[str, Value] = field(default_factory=dict)
    losses: bool = False
    """Whether clients must report their loss before and after training (two extra passes)."""


STRATEGIES: dict[str, Entry] = {
    "fedavg": Entry("the mean of the updates, weighted by data size", _FEDAVG, {"weighted": True}),
    "fedprox": Entry(
        "FedAvg with a proximal term in the client", "Li et al. 2020", {"weighted": True, "proximal-mu": 0.01}
    ),
    "scaffold": Entry("the mean; control variates against client drift", _SCAFFOLD, {"control-variates": True}),
    "calfat": Entry("calibrated adversarial training over strategy.base", _CALFAT, {"base": "fedavg"}),
    "rofsl": Entry(
        "loss (or angle) filter, geometric median, clip, server learning",
        "RoFSL",
        {"filter": "loss", "aggregator": "geometric-median", "tau": 1.0, "gamma": 0.5},
    ),
    "rfa": Entry("the geometric median", "Pillutla et al. 2022", {"aggregator": "geometric-median"}),
    "fsl": Entry("the mean, twice as far, and server learning", "RoFSL's FSL", {"server-lr": 2.0, "gamma": 0.5}),
    "zeno": Entry("updates rescaled, scored on server data; the mean of those that pass", _ZENO, {"filter": "zeno"}),
    "fltrust": Entry("weighted by the cosine with the server's own update", _FLTRUST, {"aggregator": "fltrust"}),
    "server-alone": Entry("learns on server data only: the yardstick", "RoFSL", {"aggregator": "none", "gamma": 0.5}),
    "median": Entry("the coordinate median", _YIN, {"aggregator": "median"}),
    "trimmed-mean": Entry("the coordinate mean without the extremes", _YIN, {"aggregator": "trimmed-mean"}),
    "krum": Entry("the update nearest to its neighbours", _KRUM, {"aggregator": "krum"}),
    "multi-krum": Entry("the mean of the n − f such updates", _KRUM, {"aggregator": "multi-krum"}),
    "bulyan": Entry("multi-Krum, then a trimmed mean", _BULYAN, {"aggregator": "bulyan"}),
    "centered-clipping": Entry(
        "updates clipped around the last aggregate",
        "Karimireddy et al. 2021",
        {"aggregator": "centered-clipping", "tau": 1.0},
    ),
    "foolsgold": Entry("clients that move alike share one vote", "Fung et al. 2020", {"aggregator": "foolsgold"}),
    "dsvd": Entry(
        "weighted by how alike the updates' singular vectors and values are; ranks follow each client's progress",
        "DSVD-FL",
        {"aggregator": "dsvd", "exchange": "factors", "rank": 0.5, "rank-step": 0.05},
    ),
    "fedsvd": Entry(
        "the mean of updates cut to half of their rank, weighted by data size",
        "Grammenos et al. 2020",
        {"exchange": "factors", "rank": 0.5, "weighted": True},
    ),
    "fedcpa": Entry(
        "weighted by agreement on the most and least important weights", "Han et al. 2023", {"aggregator": "fedcpa"}
    ),
    "flwr-fedavg": Entry("Flower's FedAvg", _FEDAVG),
    "flwr-fedavgm": Entry("Flower's FedAvg with server momentum 0.9", "Hsu et al. 2019"),
    "flwr-fedprox": Entry("Flower's FedProx: a proximal term in the client", "Li et al. 2020", {"proximal-mu": 0.01}),
    "flwr-fedadam": Entry("Flower's FedAdam", _FEDOPT, {"server-lr": 0.01}),
    "flwr-fedyogi": Entry("Flower's FedYogi", _FEDOPT, {"server-lr": 0.01}),
    "flwr-fedmedian": Entry("Flower's coordinate median", _YIN),
    "flwr-fedtrimmedavg": Entry("Flower's trimmed mean", _YIN),
    "flwr-krum": Entry("Flower's Krum", _KRUM),
    "flwr-multikrum": Entry("Flower's multi-Krum", _KRUM),
    "flwr-bulyan": Entry("Flower's Bulyan", _BULYAN),
    "flwr-qfedavg": Entry("Flower's q-FedAvg: clients with a high loss weigh more", "Li et al. 2020 (q-FFL)", {}, True),
}

COMMON: dict[str, Value] = {
    "filter": "none",
    "angle": 0.0,
    "rho": 0.1,
    "theta": 0.5,
    "epsilon": 0.1,
    "pre": "none",
    "aggregator": "mean",
    "server-lr": 1.0,
    "tau": 0.0,
    "gamma": 0.0,
    "server-epochs": 2,
    "server-batch-size": 180,
    "weighted": False,
    "reputation": False,
    "malicious": 1,
    "trim": 0.2,
    "q": 0.1,
    "proximal-mu": 0.0,
    "similarity-weights": "0.34,0.33,0.33",
    "scale": "relative",
    "temperature": 0.1,
    "exchange": "full",
    "rank": 1.0,
    "rank-step": 0.0,
    "rank-high": 0.75,
    "rank-low": 0.25,
    "base": "none",
    "control-variates": False,
    "class-aware": False,
    "batch-norm": "clients",
}
"""What "default" means where a strategy says nothing else."""
PAPER_TEMPERATURE = 1.0
"""The default under strategy.scale = "paper": the paper has none."""
OWN_UPDATE = ("fltrust", "foolsgold", "dsvd", "fedcpa", "none")
"""Aggregators that look at each client's own update."""


WEIGHING = ("mean", "geometric-median", "dsvd", "fedcpa")
"""Aggregators that can weigh clients by their data size."""
AUTO_CLIP = 1.5
"""client.clip = "auto" in a deployment, for rules that follow a single client as far as it goes."""
MEANS = ("mean", "foolsgold", "fedcpa")
FLOWERS_MEANS = ("fedavg", "fedavgm", "fedprox", "fedadam", "fedyogi", "qfedavg")

OWN = Entry("your own", "")
"""The row of every module:factory."""


def find(name: str) -> Entry:
    """The table's row, or an error that names the nearest."""
    if is_own(name):
        return OWN
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name, STRATEGIES, n=1, cutoff=0.0)
        raise UserError(
            f"strategy.name = {name!r}: no such strategy; did you mean {near[0]}? (thistle list strategies)"
        )
    return STRATEGIES[name]


def resolve(experiment: Experiment, deployed: bool = False) -> Experiment:
    """The same experiment with every "default" replaced by its strategy's value, and client.clip = "auto" by its own.

    `deployed`: it is made for real nodes. Whoever repeats it elsewhere finds the number, so "auto" is off there.
    """
    flat = experiment.flat()
    own = {**COMMON, **_base_defaults(experiment.strategy), **find(experiment.strategy.name).defaults}
    if flat["strategy.scale"] == "paper":
        own["temperature"] = PAPER_TEMPERATURE
    aggregator = own["aggregator"] if flat["strategy.aggregator"] == "default" else flat["strategy.aggregator"]
    if aggregator not in WEIGHING:
        own["weighted"] = False
    for name, value in own.items():
        if flat[f"strategy.{name}"] == "default":
            flat[f"strategy.{name}"] = value
    flat |= {f"client.{name}": value for name, value in calfat_clients(experiment).items()}
    if flat["client.clip"] == "auto":
        flat["client.clip"] = AUTO_CLIP if deployed and is_mean(Experiment.of(flat).strategy) else "off"
    resolved = Experiment.of(flat)
    check_strategy(resolved)
    if experiment.strategy.weighted is True:
        _check_weighted(resolved.strategy)
    return resolved


def _check_weighted(wanted: Any) -> None:
    """Weights by data size were asked for: refused where the rule has none."""
    if wanted.name.startswith("flwr-"):
        raise UserError(
            f"strategy.weighted = true: {wanted.name} is Flower's own and weighs as it does; leave it default"
        )
    if not is_own(wanted.name) and wanted.aggregator not in WEIGHING:
        raise UserError(
            f"strategy.weighted = true: {wanted.aggregator} gives every client the same say; "
            f"rules that weigh clients: {', '.join(WEIGHING)}"
        )


def is_mean(wanted: Any) -> bool:
    """Whether this (resolved) strategy takes a mean in which a client counts by the length of its update.

    FoolsGold's and FedCPA's weights do not go by lengths. Zeno gives all updates one length. Of the user's own
    strategies nobody here knows.
    """
    if is_own(wanted.name):
        return False
    if wanted.name.startswith("flwr-"):
        return wanted.name.removeprefix("flwr-") in FLOWERS_MEANS
    return wanted.aggregator in MEANS and wanted.filter != "zeno"


def _base_defaults(wanted: Strategy) -> Mapping[str, Value]:
    """What a strategy over another takes from it."""
    if wanted.name != "calfat":
        if wanted.base not in ("default", "none"):
            raise UserError(f"strategy.base = {wanted.base}: only strategy.name = calfat has a base; leave it default")
        return {}
    base = str(STRATEGIES["calfat"].defaults["base"]) if wanted.base == "default" else wanted.base
    if base == "calfat" or base.startswith("flwr-") or base not in STRATEGIES:
        pipelines = ", ".join(name for name in STRATEGIES if name != "calfat" and not name.startswith("flwr-"))
        raise UserError(f"strategy.base = {base!r}: should be one of {pipelines}")
    return STRATEGIES[base].defaults


def check_strategy(experiment: Experiment) -> None:
    """Refuse what cannot work, before anything starts: server data that is not there, f too large for n."""
    wanted: Any = experiment.strategy
    asking = _asks_for_server_data(wanted)
    if asking and experiment.task.server_data == "none":
        raise UserError(f"{asking} needs server data; set task.server-data (rendered, folder:, npz:, holdout:N)")
    if wanted.name.startswith("flwr-"):
        check_only_flower(wanted)
    if is_own(wanted.name):
        _check_own(wanted)
    if wanted.pre != "none" and wanted.aggregator in OWN_UPDATE:
        raise UserError(f"strategy.pre = {wanted.pre}: {wanted.aggregator} looks at each client's own update; use none")
    n, f = _rows(wanted, experiment.client.per_round), wanted.malicious
    rule = wanted.name.removeprefix("flwr-") if wanted.name.startswith("flwr-") else wanted.aggregator
    needed = {"krum": 2 * f + 3, "multi-krum": 2 * f + 3, "multikrum": 2 * f + 3, "bulyan": 4 * f + 3}.get(rule, 1)
    if n < needed:
        raise UserError(f"strategy.malicious = {f}: {rule} needs at least {needed} updates a round, but gets {n}")
    if wanted.pre == "nnm" and 2 * f >= n:
        raise UserError(f"strategy.malicious = {f}: nearest-neighbour mixing needs more than {2 * f} updates, not {n}")
    if wanted.aggregator == "centered-clipping" and not wanted.tau:
        raise UserError("strategy.tau = 0.0: centered clipping needs a radius above 0")
    _check_training(experiment)
    if wanted.aggregator == "none" and not wanted.gamma:
        raise UserError('strategy.gamma = 0.0: with strategy.aggregator = "none" nothing would ever be learnt')
    parse_similarity_weights(wanted.similarity_weights, wanted.scale)
    if wanted.rank_low > wanted.rank_high:
        raise UserError(
            f"strategy.rank-low = {wanted.rank_low:g}: should not be above strategy.rank-high = {wanted.rank_high:g}"
        )


def parse_similarity_weights(text: str, scale: str) -> tuple[float, ...] | None:
    """α₁, α₂, α₃ of DSVD-FL; None: "auto". Under the paper's own scale they need not sum to 1: its extremes run."""
    if text == "auto":
        return None
    key = f"strategy.similarity-weights = {text!r}"
    try:
        alpha = tuple(float(part) for part in text.split(","))
    except ValueError:
        alpha = ()
    if len(alpha) != 3 or not all(0 <= value < math.inf for value in alpha):
        raise UserError(f"{key}: should be auto or three numbers of 0 or more, such as {COMMON['similarity-weights']}")
    if scale != "paper" and abs(sum(alpha) - 1) > 1e-6:
        raise UserError(f"{key}: should sum to 1, not {sum(alpha):g}")
    return alpha


def _check_training(experiment: Experiment) -> None:
    """SCAFFOLD and class-aware heads: what their formulas take for granted."""
    wanted: Any = experiment.strategy
    if wanted.control_variates:
        if experiment.client.momentum:
            raise UserError(
                f"client.momentum = {experiment.client.momentum:g}: SCAFFOLD's control variates are defined for plain "
                "SGD; use 0.0"
            )
        if wanted.filter == "zeno" or wanted.aggregator == "none":
            key = "filter" if wanted.filter == "zeno" else "aggregator"
            raise UserError(
                f"strategy.{key} = {getattr(wanted, key)}: SCAFFOLD's control variates need the updates as they were "
                "trained; use strategy.control-variates = false"
            )
        if wanted.exchange == "factors" or wanted.rank != 1:
            key = "exchange" if wanted.exchange == "factors" else "rank"
            raise UserError(
                f"strategy.{key} = {getattr(wanted, key)}: SCAFFOLD's control variates need the updates as they were "
                "trained, not cut to a rank"
            )
    if wanted.class_aware and (wanted.aggregator != "mean" or wanted.pre != "none"):
        key = "pre" if wanted.aggregator == "mean" else "aggregator"
        raise UserError(
            f"strategy.class-aware = true: rows of the head can be averaged by class over a mean only, "
            f"not with strategy.{key} = {getattr(wanted, key)}"
        )


def _check_own(wanted: Any) -> None:
    """What the user's own steps stand for."""
    for key, value in (("aggregator", wanted.aggregator), ("class-aware", wanted.class_aware)):
        if value != COMMON[key]:
            raise UserError(f"strategy.{key} = {value}: {wanted.name} aggregates in its own way; leave it default")


def check_only_flower(wanted: Any) -> None:
    """What only a pipeline has must not be asked of a strategy of Flower's."""
    keys = ["filter", "pre", "aggregator", "tau", "gamma", "reputation", "exchange", "rank", "rank-step"]
    keys += ["control-variates", "class-aware", "batch-norm"]
    for key, value in ((key, getattr(wanted, key.replace("-", "_"))) for key in keys):
        if value != COMMON[key]:
            kind = "a strategy of Flower's kind" if is_own(wanted.name) else "Flower's own"
            raise UserError(f"strategy.{key} = {value}: {wanted.name} is {kind} and has no {key}")


def needs_losses(wanted: Any) -> bool:
    """Whether this (resolved) strategy's clients must report their loss before and after training."""
    return find(wanted.name).losses or wanted.rank_step > 0


def _rows(wanted: Any, per_round: int) -> int:
    """How many rows the aggregator gets, as far as the settings tell."""
    n = per_round
    if wanted.filter == "loss" and wanted.theta != "auto":
        n -= int(wanted.theta * n + 1e-9)
    return (n + 1) // 2 if wanted.pre == "bucketing" else n


def needs_server_data(wanted: Strategy) -> bool:
    """Whether a step of this (resolved) strategy uses the server's own data, or, being the user's own, may do so."""
    return is_own(wanted.name) or bool(_asks_for_server_data(wanted))


def _asks_for_server_data(wanted: Any) -> str:
    if wanted.name.startswith("flwr-"):
        return ""
    if wanted.filter != "none":
        return f"strategy.filter = {wanted.filter}"
    if wanted.gamma:
        return f"strategy.gamma = {wanted.gamma:g}"
    if wanted.batch_norm == "server":
        return "strategy.batch-norm = server"
    return "strategy.aggregator = fltrust" if wanted.aggregator == "fltrust" else ""
