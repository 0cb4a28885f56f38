"""The server's rule in the hands of an attacker: what it would make of updates that nobody has sent yet.

For attacks that choose what they send by trying it out: against a named rule, or the experiment's own. The attacker
builds the strategy as the server does, with the server's data where the strategy uses some; who knows the whole
defence also has its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from thistle.attacks.poisoning.search import USED
from thistle.attacks.registry import chosen
from thistle.attacks.roles import attackers
from thistle.attacks.training.loss import server_loss
from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout, to_state
from thistle.protocol.records import SAMPLED
from thistle.protocol.training import RATE
from thistle.strategies.build import chosen as strategy_of
from thistle.strategies.build import make_strategy, needs_server_data, resolve
from thistle.strategies.pipeline import STRANGERS, Pipeline
from thistle.tasks.models import build_model
from thistle.tasks.task import prepare_task


@dataclass(frozen=True)
class KnownDefence:
    """A strategy at one round's model."""

    strategy: Pipeline
    first: Tensor
    """The model that the federation began with."""
    number: int
    arrays: ArrayRecord
    lr: float
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What the server's own has remembered so far, where it is known."""
    honest: tuple[int, ...] = ()
    malicious: tuple[int, ...] = ()
    """Who takes part in the round; empty: nobody knows."""

    @cached_property
    def _ready(self) -> Pipeline:
        self.strategy.load_state_dict(self.state)
        self.strategy.begin(self.number, self.arrays, ConfigRecord({RATE: self.lr}))
        return self.strategy

    def counts(self) -> dict[str, int]:
        """n and f of this very round, where they are known."""
        return {"n": len(self.honest) + len(self.malicious), "f": len(self.malicious)} if self.malicious else {}

    def step(self, honest: Tensor, malicious: Tensor) -> Tensor:
        """The change of the model that it makes of these updates, before any learning of the server's; 0: too few."""
        try:
            self._ready.check_count(len(honest) + len(malicious))
        except UserError:
            return torch.zeros_like(self.first)
        ids = torch.tensor(self._ids(len(honest), len(malicious)))
        order = ids.argsort()
        rows = torch.cat([honest, malicious])[order]
        return self._ready.try_out(self.number, rows, ids[order].tolist()).step

    def _ids(self, honest: int, malicious: int) -> list[int]:
        """Clients that the server knows if the attackers know them; otherwise ids that no client has."""
        known = [*self.honest[:honest], *self.malicious[:malicious]]
        strangers = range(STRANGERS, STRANGERS + honest + malicious)
        return known if len(known) == honest + malicious else list(strangers)

    def gradient(self) -> Tensor | None:
        """g0 of the server's data at the model that came; None: the strategy uses none."""
        return self._ready.server_gradient()

    def learnt(self) -> Tensor:
        """What the federation has made of its first model so far."""
        assert self._ready.layout is not None
        return self._ready.layout.vector(to_state(self.arrays)) - self.first

    def worst(self, honest: Tensor, copies: int, target: Tensor) -> list[Tensor]:
        """What its filters offer in closed form: updates of which `copies` pass, farthest along `target`."""
        return self._ready.worst(self.number, honest, copies, target)


def known_defence(
    experiment: Experiment,
    rule: str,
    number: int,
    arrays: ArrayRecord,
    lr: float,
    state: Mapping[str, np.ndarray] | None,
) -> KnownDefence:
    """The experiment's own strategy (`used`), or the one of this name with its default settings."""
    known = dict(state or {})
    sampled = known.pop(SAMPLED, np.array([], dtype=np.int64)).tolist()
    evil = attackers(experiment.attack, experiment.task.clients, experiment.seed)
    honest, malicious = (tuple(one for one in sampled if (one in evil) is side) for side in (False, True))
    return KnownDefence(*_built(experiment, rule), number, arrays, lr, known, honest, malicious)


def check_defence(experiment: Experiment) -> None:
    """Refuse an attack that tries out a strategy which cannot be tried out."""
    rule = chosen(experiment.attack).tries_out()
    if rule is None:
        return
    named = strategy_of(_against(experiment, rule))
    if not isinstance(named, Pipeline) or type(named).aggregate_train is not Pipeline.aggregate_train:
        raise _cannot_be_tried_out(experiment, named.name)


def _cannot_be_tried_out(experiment: Experiment, name: str) -> UserError:
    why = "aggregates in its own way and cannot be tried out"
    return UserError(f"attack.kind = {experiment.attack.kind}: {name} {why}; use a strategy of Thistle's own")


def _against(experiment: Experiment, rule: str) -> Experiment:
    """The same experiment with the strategy of this name."""
    if rule == USED:
        return experiment
    try:
        return resolve(experiment.model_copy(update={"strategy": settings.Strategy(name=rule)}))
    except UserError as error:
        why = str(error).removeprefix(f"strategy.name = {rule!r}: ")
        raise UserError(f"attack.rule = {rule}: {why}") from None


@lru_cache(maxsize=2)
def _built(experiment: Experiment, rule: str) -> tuple[Pipeline, Tensor]:
    """The strategy and the first model, as the server builds them; once per process."""
    wanted = _against(experiment, rule)
    task = prepare_task(wanted.task, wanted.seed, needs_server_data(wanted))
    model = build_model(wanted.network, task.shape, task.classes, wanted.seed)
    layout = Layout.of(model)
    made = make_strategy(wanted, task, layout, server_loss(wanted, task))
    if not isinstance(made, Pipeline):
        raise _cannot_be_tried_out(experiment, wanted.strategy.name)
    return made, layout.vector(model.state_dict())
