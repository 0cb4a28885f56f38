"""The steps after the filter: pre-steps, the aggregators, rate, clip and server learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thistle.experiments.randomness import torch_rng
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate
from thistle.strategies.rounds import Progress, Round

Rule = Callable[[Tensor, Tensor, Tensor | None], Aggregate]
"""(kept updates, their prior, mixing) → aggregate."""

NEGLIGIBLE = 0.1
"""A client whose weight is below this part of its share by the prior counts as excluded by the aggregate."""


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """NNM: each update becomes the mean of its n − f nearest."""

    malicious: int

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return progress
        return replace(progress, mixing=aggregators.nearest_neighbour_mixing(kept_updates(progress), self.malicious))


@dataclass(frozen=True)
class Bucketing:
    """Means of `size` random updates take the updates' place."""

    seed: int
    size: int = 2

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return progress
        generator = torch_rng(self.seed, "buckets", round.number)
        size = min(self.size, int(progress.kept.sum()))
        return replace(progress, mixing=aggregators.bucketing(kept_updates(progress), size, generator))


@dataclass(frozen=True)
class Aggregation:
    """Any rule that needs nothing but the updates."""

    name: str
    rule: Rule
    coordinatewise: bool = False

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        prior = round.prior[progress.kept]
        return aggregated(
            round, progress, self.rule(kept_updates(progress), prior, progress.mixing), self.name, self.coordinatewise
        )


@dataclass(frozen=True)
class CenteredClipping:
    """Each update clipped to τ around the last round's aggregate (Karimireddy et al. 2021)."""

    tau: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        last = round.memory.get("centre")
        start = None if last is None else torch.from_numpy(last)
        found = aggregators.centered_clipping(kept_updates(progress), self.tau, start=start, mixing=progress.mixing)
        return aggregated(round, progress, found, "centered-clipping").note(centre=found.vector.numpy())


@dataclass(frozen=True)
class FLTrust:
    """Weights ReLU(cos(Δ_i, Δ_0)), each Δ_i rescaled to ‖Δ_0‖, Δ_0 the server's own local update."""

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.server is not None, "checked when the strategy was built"
        if not progress.kept.any():
            return nothing(progress)
        reference = round.server.learn(round.model, round.lr) - round.model
        found = aggregated(round, progress, aggregators.fltrust(kept_updates(progress), reference), "fltrust")
        return replace(found, voters=found.kept)  # the server's data spoke against the others


@dataclass(frozen=True)
class FoolsGold:
    """Clients whose summed updates point the same way share one vote; the sums are kept for every client seen."""

    def __call__(self, round: Round, progress: Progress) -> Progress:
        ids = [client for client, kept in zip(round.ids, progress.kept, strict=True) if kept]
        if not ids:
            return nothing(progress)
        updates = kept_updates(progress)
        history = updates.clone()
        for row, client in zip(history, ids, strict=True):
            past = round.memory.get(f"foolsgold/{client}")
            if past is not None:
                row.add_(torch.from_numpy(past))
        weights = aggregators.foolsgold(aggregators.gram(history, centred=False))
        sums = {f"foolsgold/{client}": row.numpy().copy() for client, row in zip(ids, history, strict=True)}
        if not bool((weights > 0).any()):
            return nothing(progress).drop(progress.kept, "foolsgold").note(**sums)
        return aggregated(round, progress, aggregators.mean(updates, weights), "foolsgold").note(**sums)


@dataclass(frozen=True)
class ServerRate:
    """η_g: the aggregate times a constant."""

    rate: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        return replace(progress, step=progress.step * self.rate)


@dataclass(frozen=True)
class Clip:
    """Clip_τ(v) = v·min(1, τ/‖v‖)."""

    tau: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        return replace(progress, step=aggregators.clip(progress.step, self.tau))


@dataclass(frozen=True)
class ServerLearning:
    """x̄ + Clip_τ(LocalSGD(γ f0, x̄) − x̄): the server learns on its own data. τ 0: no clip."""

    gamma: float
    tau: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.server is not None, "checked when the strategy was built"
        middle = round.model + progress.step
        learnt = round.server.learn(middle, self.gamma * round.lr) - middle
        if self.tau:
            learnt = aggregators.clip(learnt, self.tau)
        length = float(torch.linalg.vector_norm(learnt))
        return replace(progress, step=progress.step + learnt).measure(server_step=length)


def kept_updates(progress: Progress) -> Tensor:
    """The kept rows; no copy where all are."""
    return progress.updates if bool(progress.kept.all()) else progress.updates[progress.kept]


def nothing(progress: Progress) -> Progress:
    """Nobody is left to aggregate: the model stays where it is."""
    return replace(progress, weights=torch.zeros(len(progress.kept), dtype=torch.float64))


def aggregated(round: Round, progress: Progress, found: Aggregate, name: str, coordinatewise: bool = False) -> Progress:
    """The aggregate, with the weights of all clients; whom it gave next to nothing counts as filtered by it.

    The buffers of such a client still count. Krum chooses one client, whose buffers nobody could check; a filter's
    verdict goes by the server's data and is final.
    """
    prior, weights = round.prior, torch.zeros(len(progress.kept), dtype=torch.float64)
    weights[progress.kept] = found.weights
    voters = progress.kept
    progress = replace(progress, step=found.vector, weights=weights, voters=voters, coordinatewise=coordinatewise)
    negligible = progress.kept & (weights < NEGLIGIBLE * prior / prior[progress.kept].sum())
    return progress.drop(negligible, name)
