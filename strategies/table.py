"""The strategies by name: what each is, where it comes from, and its own defaults. Data only.

Ours are pipelines: the same parts with other settings. Flower's own come as `flwr-*`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from exchange.errors import UserError
from exchange.experiment import Experiment
from exchange.settings import Value

_FEDAVG, _FEDOPT, _YIN = "McMahan et al. 2017", "Reddi et al. 2021", "Yin et al. 2018"
_KRUM, _BULYAN = "Blanchard et al. 2017", "El Mhamdi et al. 2018"


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
    "server-lr": 1.0,
    "weighted": False,
    "malicious": 1,
    "trim": 0.2,
    "q": 0.1,
    "proximal-mu": 0.0,
}
"""What "default" means where a strategy says nothing else."""


def find(name: str) -> Entry:
    """The table's row, or an error that names the nearest."""
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name, STRATEGIES, n=1, cutoff=0.0)
        raise UserError(
            f"strategy.name = {name!r}: no such strategy; did you mean {near[0]}? (thistle list strategies)"
        )
    return STRATEGIES[name]


def resolve(experiment: Experiment) -> Experiment:
    """The same experiment with every "default" replaced by its strategy's value."""
    flat = experiment.flat()
    for name, value in {**COMMON, **find(experiment.strategy.name).defaults}.items():
        if flat[f"strategy.{name}"] == "default":
            flat[f"strategy.{name}"] = value
    return Experiment.of(flat)
