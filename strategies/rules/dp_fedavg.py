"""DP-FedAvg: nobody can tell from the model whether a client took part with its own data or with other data.

Each client's update is clipped to length S, the sum gets Gaussian noise, and is divided by the number of clients that
were asked, not of those that answered. The server sees the updates; the models reveal at most ε about a client.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from flwr.serverapp import Grid
from pydantic import Field
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import numpy_rng, torch_rng
from thistle.experiments.settings import AboveZero, NonNegative
from thistle.protocol.layout import Layout
from thistle.strategies.accounting import spent
from thistle.strategies.aggregators import Aggregate, clipped_mean, mean
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import Aggregation

Delta = Annotated[float, Field(gt=0.0, lt=1.0)]
ROUNDS = "private_rounds"
"""In the memory: rounds that have given a model."""
EMPTY = 0.01
"""The part of δ that rounds without any client may take up: they would get no noise."""


@strategy("dp-fedavg", "McMahan et al. 2018")
class DPFedAvg(Pipeline):
    """The mean of clipped updates with Gaussian noise: differential privacy for whole clients."""

    bound: AboveZero | Literal["off"] = setting("S: the length to which each update is clipped", default=1.0)
    noise: NonNegative = setting(
        "z: the noise multiplier: the sum of the clipped updates gets noise of standard deviation z·S; 0: none, and no "
        "privacy",
        default=1.0,
    )
    delta: Delta = setting("the δ for which ε is stated; well below one over the number of clients", default=1e-5)
    sampling: Literal["fixed", "poisson"] = setting(
        "whether `client.per-round` clients are drawn without replacement, or each client takes part with the "
        "probability that gives this number on average; the stated ε is for the method in use",
        default="fixed",
    )

    expected: int = 0
    """Clients that a round asks for, on average; 0: as many as answer."""
    secret: int | None = None
    """What noise and sampling are drawn from in a deployment, where clients know the seed; None: the seed."""

    def steps(self) -> list[Step | None]:
        """Clip and average, then add noise, then count what it costs."""
        expected, rule = self.expected, Aggregation("dp-fedavg", self.rule)
        scale = 0.0 if self.bound == "off" else self.noise * self.bound
        return [rule, Divide(expected), GaussianNoise(scale, expected, self._drawn_from), Account(self)]

    def rule(self, updates: Tensor, weights: Tensor) -> Aggregate:
        """Every client weighs the same."""
        return mean(updates) if self.bound == "off" else clipped_mean(updates, None, self.bound)

    def epsilon_after(self, rounds: int) -> float:
        """After this many rounds that gave a model."""
        return spent(self.noise, self.sampling, self.num_clients, self.expected, rounds, self.delta)

    @property
    def _drawn_from(self) -> int:
        return self.seed if self.secret is None else self.secret

    def choose_clients(self, number: int, grid: Grid) -> list[int]:
        """Of all clients, and not of those that happen to be there: otherwise their chance were higher than stated."""
        if not self.expected:
            return super().choose_clients(number, grid)
        available = self._wait_for_nodes(grid)
        self._connected = len(available)
        rng = numpy_rng(self._drawn_from, "sample", number)
        if self.sampling == "poisson":
            drawn = np.flatnonzero(rng.random(self.num_clients) < self.expected / self.num_clients)
        else:
            drawn = rng.choice(self.num_clients, self.expected, replace=False, shuffle=False)
        return sorted(np.intersect1d(drawn, available.astype(np.int64)).tolist())

    def check(self, experiment: Experiment) -> None:
        """Refuse whatever lets one client's data reach the model past clipping and noise."""
        super().check(experiment)
        if not self.noise:
            return
        client, clients = experiment.client, experiment.task.clients
        needs = {
            "strategy.bound": (self.bound, self.bound != "off", "with noise, updates must be clipped; give a length"),
            "client.clip": (client.clip, isinstance(client.clip, str), "uses all clients' lengths; use off"),
            "strategy.filter": (self.filter, self.filter == "none", "judges updates before the noise; use none"),
            "strategy.pre": (self.pre, self.pre == "none", "mixes updates before the noise; use none"),
            "strategy.reputation": (self.reputation, not self.reputation, "samples by what clients sent; use false"),
            "strategy.control-variates": (
                self.control_variates,
                not self.control_variates,
                "sends clients what others sent, without noise; use false",
            ),
            "strategy.rank-step": (self.rank_step, not self.rank_step, "goes by other clients' losses; use 0"),
        }
        for key, (value, fine, why) in needs.items():
            if not fine:
                raise UserError(f"{key} = {value}: {why}")
        if self.sampling == "poisson":
            self._check_poisson(client.per_round, client.min_replies, clients, experiment.rounds)
        first, budget = (
            spent(self.noise, self.sampling, clients, client.per_round, 1, self.delta),
            experiment.stop.epsilon,
        )
        if 0 < budget < first:
            raise UserError(
                f"stop.epsilon = {budget:g}: the first round already takes {first:.3g}; raise it, or strategy.noise"
            )

    def _check_poisson(self, per_round: int, least: int, clients: int, rounds: int) -> None:
        """Rounds with too few clients leave the model as it was, which tells that there were too few."""
        chance = per_round / clients
        few = sum(math.comb(clients, k) * chance**k * (1 - chance) ** (clients - k) for k in range(least))
        if rounds * few > EMPTY * self.delta:
            raise UserError(
                f"client.per-round = {per_round}: with strategy.sampling = poisson a round may find fewer than "
                f"client.min-replies = {least} clients (chance {few:.1g}), and gets no noise; use more, or fixed"
            )


@dataclass(frozen=True)
class Divide:
    """By the number of clients that was asked for: how many answered must not matter."""

    expected: int
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        answered = int(progress.kept.sum())
        if not self.expected or answered == self.expected:
            return progress
        return replace(progress, step=progress.step * (answered / self.expected))


@dataclass(frozen=True)
class GaussianNoise:
    """N(0, (z·S/n)²) on every parameter.

    Drawn by (seed, round, what it is added to): a round that is tried again with other replies gets other noise, so
    that the difference of the two tells nothing.
    """

    scale: float
    """z·S, of the sum."""
    expected: int
    seed: int
    stage: ClassVar[str] = "aggregate"

    @property
    def off(self) -> bool:
        return not self.scale

    def check(self, layout: Layout) -> None:
        """What is not in the vector would reach the next model without noise."""
        if layout.buffers:
            raise UserError(
                f"strategy.noise: the model has {layout.buffers[0].name} and similar buffers, which clients send and "
                "no noise covers; choose a model without batch norm, such as mlp"
            )

    def __call__(self, round: Round, progress: Progress) -> Progress:
        content = _digest(progress.step)
        drawn = torch.randn(len(progress.step), generator=torch_rng(self.seed, "privacy", round.number, content))
        count = self.expected or int(progress.kept.sum())
        return replace(progress, step=progress.step + (self.scale / count) * drawn)


@dataclass(frozen=True)
class Account:
    """ε after this round, and after one more, for the metrics and for `stop.epsilon`."""

    strategy: DPFedAvg
    stage: ClassVar[str] = "aggregate"

    @property
    def off(self) -> bool:
        return not self.strategy.noise or not self.strategy.expected

    def __call__(self, round: Round, progress: Progress) -> Progress:
        rounds = int(round.memory.get(ROUNDS, np.array(0))) + 1
        now, after = self.strategy.epsilon_after(rounds), self.strategy.epsilon_after(rounds + 1)
        counted = progress.note(**{ROUNDS: np.array(rounds)})
        return counted.measure(privacy_epsilon=now, privacy_next=after, privacy_delta=self.strategy.delta)


def _digest(vector: Tensor) -> str:
    return hashlib.sha256(vector.numpy().tobytes()).hexdigest()
