"""CalFAT: calibrated federated adversarial training.

The mathematics is in thistle.attacks.training: each client trains adversarially, with logits calibrated by its own
class counts, and so does a server that learns on its own data. The strategy tells the clients how, and aggregates by
any rule: `CalFAT` is over FedAvg, as in the paper, `CalFAT.over(RoFSL)` over another. Clients that do not know these
settings ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import TERMS, Value
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategies, strategy
from thistle.strategies.rules.fedavg import FedAvg

PAPERS: Mapping[str, Value] = {"client.objective": "ckl", "client.calibration": "calfat"}
"""How the paper's clients train: the calibrated loss, on examples made for it."""
BASE = "the strategy that aggregates, any but Flower's; its settings can be set too"


@dataclass(kw_only=True, eq=False, repr=False)
class Calibrated:
    """Any pipeline, with adversarial training at its clients."""

    base: str = setting(BASE, default="fedavg")
    tell: Mapping[str, Value] = field(default_factory=lambda: dict(PAPERS))
    """How clients train, by the names of an experiment's `client.` settings."""

    def client_defaults(self, experiment: Experiment) -> Mapping[str, Value]:
        """It is what the strategy is for: the paper's training, unless the experiment names another."""
        client = experiment.client
        said = client.objective != "standard" or client.calibration != "none"
        return {} if said else {key.removeprefix("client."): value for key, value in PAPERS.items()}

    def tell_clients(self, experiment: Experiment) -> Mapping[str, Value]:
        """The experiment's adversarial settings, so that a client whose config was never resolved knows them too."""
        flat = experiment.flat()
        return {key: flat[key] for key in TERMS}


@strategy("calfat", "CalFAT")
class CalFAT(Calibrated, FedAvg):
    """Calibrated adversarial training over strategy.base."""

    @staticmethod
    def over(base: type[Pipeline]) -> type[Pipeline]:
        """The same over another rule: `CalFAT.over(RoFSL)(gamma=0.5)`."""
        return CalFAT if base is FedAvg else _over(base)

    @classmethod
    def variant(cls, options: Mapping[str, Value]) -> type[Pipeline]:
        """Over the rule that `base` names."""
        name, known = options.get("base", "fedavg"), _pipelines()
        if name not in known:
            raise UserError(f"strategy.base = {name!r}: should be one of {', '.join(known)}")
        return cls.over(known[str(name)])


@cache
def _over(base: type[Pipeline]) -> type[Pipeline]:
    name = setting(BASE, default=base.name)
    fields: list[Any] = [("base", str, name)]
    made: Any = make_dataclass(f"CalFATOver{base.__name__}", fields, bases=(Calibrated, base), kw_only=True, eq=False)
    made.name, made.paper, made.__doc__, made.__module__ = "calfat", "CalFAT", CalFAT.__doc__, __name__
    return made  # type: ignore[no-any-return]


def _pipelines() -> dict[str, type[Pipeline]]:
    """The rules that can be a base."""
    return {n: cls for n, cls in strategies().items() if issubclass(cls, Pipeline) and n != "calfat"}
