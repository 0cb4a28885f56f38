"""The server's rule in the hands of an attacker: what it would make of updates that nobody has sent yet.

For attacks that choose what they send by trying it out: against a named rule, or the experiment's own. The attacker
builds the strategy as the server does, with the server's data where the strategy uses some; who knows the whole
defence also has its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from thistle.attacks.registry import chosen
from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout
from thistle.protocol.training import RATE
from thistle.strategies.build import chosen as strategy_of
from thistle.strategies.build import make_strategy, needs_server_data, resolve
from thistle.strategies.pipeline import Pipeline
from thistle.tasks.models import build_model
from thistle.tasks.task import prepare_task

USED = "used"
"""The name of the rule that the experiment itself uses."""


@dataclass(frozen=True)
class KnownDefence:
    """A strategy at one round's model."""

    strategy: Pipeline
    number: int
    arrays: ArrayRecord
    lr: float
    state: Mapping[str, np.ndarray] | None = None
    """What the server's own has remembered so far; None: nobody knows."""

    @cached_property
    def _ready(self) -> Pipeline:
        self.strategy.load_state_dict(dict(self.state or {}))
        self.strategy.begin(self.number, self.arrays, ConfigRecord({RATE: self.lr}))
        return self.strategy

    def step(self, honest: Tensor, malicious: Tensor) -> Tensor:
        """The change of the model that it makes of these updates, before any learning of the server's."""
        return self._ready.try_out(self.number, torch.cat([honest, malicious])).step

    def gradient(self) -> Tensor | None:
        """g0 of the server's data at the model that came; None: the strategy uses none."""
        return self._ready.server_gradient()


def known_defence(
    experiment: Experiment,
    rule: str,
    number: int,
    arrays: ArrayRecord,
    lr: float,
    state: Mapping[str, np.ndarray] | None,
) -> KnownDefence:
    """The experiment's own strategy (`used`), or the one of this name with its default settings."""
    return KnownDefence(_built(experiment, rule), number, arrays, lr, state)


def check_defence(experiment: Experiment) -> None:
    """Refuse an attack that tries out a strategy which cannot be tried out."""
    rule = chosen(experiment.attack).tries_out()
    if rule is None:
        return
    named = strategy_of(_against(experiment, rule))
    if not isinstance(named, Pipeline):
        why = "runs in Flower's own way and cannot be tried out"
        raise UserError(f"attack.kind = {experiment.attack.kind}: {named.name} {why}; use a strategy of Thistle's own")


def _against(experiment: Experiment, rule: str) -> Experiment:
    """The same experiment with the strategy of this name."""
    if rule == USED:
        return experiment
    return resolve(experiment.model_copy(update={"strategy": settings.Strategy(name=rule)}))


@lru_cache(maxsize=2)
def _built(experiment: Experiment, rule: str) -> Pipeline:
    """Once per process, as the server builds it."""
    wanted = _against(experiment, rule)
    task = prepare_task(wanted.task, wanted.seed, needs_server_data(wanted))
    layout = Layout.of(build_model(wanted.network, task.shape, task.classes, wanted.seed))
    made = make_strategy(wanted, task, layout)
    assert isinstance(made, Pipeline), "checked before anything started"
    return made
