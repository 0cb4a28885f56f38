"""One step that knows clients: it keeps those whose updates of all rounds speak for them, and aggregates these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators import geometric_median, gram, mean
from thistle.strategies.memory.per_client import Memory, PerClient
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing
from thistle.strategies.steps.agreement import Anchor, majority
from thistle.strategies.steps.kinds import Kinds, tell_apart

NAME = "evidence"
FEATURES = ("agreement", "direction", "length")
MEANS = [PerClient(f"evidence.{name}", unseen=0.0) for name in FEATURES]
COUNTS = [PerClient(f"evidence.{name}.times", unseen=0.0) for name in FEATURES]
WITHIN, LEVEL, LENGTH, DIRECTION = "evidence.within", "evidence.level", "evidence.usual-length", "evidence.accepted"
FIRST_WITHIN = (1.0, 0.3, 0.1)
"""Variances within a client, before there is anything to estimate them from."""
ENOUGH = 3.0
"""Rounds in which clients must have been seen, on average, before their record is believed."""
SURE = 1.5
"""Standard errors from which on there is an attack."""
SAME = 0.9
"""Updates with a larger cosine share one vote."""
BOUND = 3.0
"""Beyond which a feature is cut: one round must not decide a client's record."""
ENOUGH_AGREEMENT = 2.0
"""Agreement beyond this many levels earns nothing: clients that agree far more could push honest ones out."""
LEAST_LEVEL = 0.02
"""Of agreement: below this, the server's data are not informative."""


@dataclass(frozen=True)
class Evidence:
    """Judges by all rounds so far, then takes the geometric median of those whom it believes, in bounded lengths.

    Three features of an update go into a client's record: its agreement with the server's data (see agreement.py), in
    units of what accepted clients have at least; its cosine with what was accepted in the last rounds; and how unusual
    its length is. kinds.py tells the two kinds of clients apart. While clients have been seen too seldom, the better
    half of a round is kept, whatever the record says; where no attack shows, everybody is, and the mean is taken.
    """

    memory: int
    """How many of a client's rounds its record covers, so that a client that changes is judged again."""
    anchor: str
    """What is trusted: the server's data, or the majority of a round."""
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        products = gram(progress.updates, centred=False)
        anchor = self._anchor(round, progress.updates, products)
        lengths = products.diagonal().clamp_min(0.0).sqrt()
        agreement = anchor.scores(progress.updates, lengths)
        progress, kinds = self._judge(round, progress, anchor, agreement, lengths)
        honest, thin, attacked = self._decide(round, progress, kinds)
        order = torch.argsort(honest + 1e-3 * agreement, descending=True, stable=True)
        progress = _drop(progress, honest, order, thin)
        if not progress.kept.any():
            return nothing(progress)
        usual = float(lengths[order[: max(1, len(order) // 2)]].median())
        _bound(progress.updates, lengths, usual, attacked)
        weights = honest.clamp_min(0.05) * _votes(products, lengths)
        rule = geometric_median if attacked else mean
        found = rule(kept_updates(progress), weights[progress.kept])
        notes = self._after(round, progress, anchor, agreement, usual, found.vector, thin)
        progress = aggregated(round, progress, found, NAME)
        return progress.note(**notes).measure(
            evidence_attack=float(attacked and not thin),
            evidence_share=kinds.share if attacked and not thin else 0.0,
            evidence_significance=kinds.significance if math.isfinite(kinds.significance) else 0.0,
        )

    def _anchor(self, round: Round, updates: Tensor, products: Tensor) -> Anchor:
        if self.anchor == "majority":
            return majority(updates, products)
        assert round.server is not None, "checked when the strategy was built"
        return round.server.anchor()

    def _judge(
        self, round: Round, progress: Progress, anchor: Anchor, agreement: Tensor, lengths: Tensor
    ) -> tuple[Progress, Kinds]:
        """The records with this round in them, and what they say of all clients that were ever seen."""
        memory = round.memory
        level = _level_before(memory, agreement)
        features = {0: np.clip((agreement / level).numpy(), -BOUND, ENOUGH_AGREEMENT)}
        if DIRECTION in memory:
            features[1] = BOUND * _cosines(anchor.view(progress.updates), torch.from_numpy(memory[DIRECTION]))
        if LENGTH in memory:
            features[2] = _unusual(lengths.numpy(), _number(memory, LENGTH))
        within = memory.get(WITHIN, np.array(FIRST_WITHIN)).copy()
        notes: dict[str, np.ndarray] = {}
        for place in range(len(FEATURES)):
            mean, count = MEANS[place].of(memory, round.ids), COUNTS[place].of(memory, round.ids)
            if place in features:
                now = features[place]
                within[place] = _scatter(within[place], (now - mean)[count >= 2])
                count = np.minimum(count + 1, self.memory)
                mean = mean + (now - mean) / count
            notes |= {**MEANS[place].after(memory, round.ids, mean), **COUNTS[place].after(memory, round.ids, count)}
        means, counts = (np.stack([notes[one.name] for one in kept], axis=1) for kept in (MEANS, COUNTS))
        return progress.note(**{WITHIN: within}, **notes), tell_apart(means, counts, within)

    def _decide(self, round: Round, progress: Progress, kinds: Kinds) -> tuple[Tensor, bool, bool]:
        """The round's clients' probabilities, whether too little is known, and whether there is an attack."""
        thin = float(progress.notes[COUNTS[0].name].mean()) < ENOUGH
        attacked = thin or kinds.significance > SURE
        mine = kinds.honest[np.searchsorted(MEANS[0].clients(progress.notes), np.asarray(round.ids, np.uint64))]
        return torch.from_numpy(mine if attacked else np.ones_like(mine)), thin, attacked

    def _after(
        self,
        round: Round,
        progress: Progress,
        anchor: Anchor,
        agreement: Tensor,
        usual: float,
        step: Tensor,
        thin: bool,
    ) -> dict[str, np.ndarray]:
        """The yardsticks of the next rounds, by what was accepted in this one."""
        memory = round.memory
        now = _level(agreement[progress.kept])
        level, length = _level_before(memory, agreement), _number(memory, LENGTH) or usual
        notes = {LEVEL: np.array([0.85 * level + 0.15 * now]), LENGTH: np.array([0.8 * length + 0.2 * usual])}
        if thin:
            return notes
        view = anchor.view(step[None])[0].numpy()
        return {**notes, DIRECTION: 0.9 * memory[DIRECTION] + 0.1 * view if DIRECTION in memory else view}


def _number(memory: Memory, name: str) -> float:
    return float(memory[name][0]) if name in memory else 0.0


def _level_before(memory: Memory, agreement: Tensor) -> float:
    """As the last rounds left it; in the first one nobody has been accepted yet: that of the better half."""
    better = agreement.sort(descending=True).values[: max(1, len(agreement) // 2)]
    return _number(memory, LEVEL) or _level(better)


def _level(agreement: Tensor) -> float:
    """The lower quartile: a minority of the accepted, however well it agrees, cannot raise what is asked of others."""
    return max(LEAST_LEVEL, float(torch.quantile(agreement, 0.25)))


def _cosines(vectors: Tensor, direction: Tensor) -> np.ndarray:
    lengths = vectors.norm(dim=1) * direction.norm()
    cosines: np.ndarray = torch.where(lengths > 0, (vectors @ direction) / lengths, 0.0).numpy()
    return cosines


def _unusual(lengths: np.ndarray, usual: float) -> np.ndarray:
    """How far from the usual length, either way, as a logarithm."""
    found: np.ndarray = np.minimum(np.abs(np.log(np.maximum(lengths, 1e-30) / max(usual, 1e-30))), BOUND)
    return found


def _scatter(before: float, deviations: np.ndarray) -> float:
    """The variance within a client, from how far this round was from the records; no single one counts for much."""
    if not len(deviations):
        return before
    return 0.9 * before + 0.1 * float(np.minimum(deviations**2, 9 * before).mean() * 0.75)


def _drop(progress: Progress, honest: Tensor, order: Tensor, thin: bool) -> Progress:
    """Without those that are probably malicious, or the worse half of a round; the best quarter stays in any case."""
    count = len(order)
    keep = torch.zeros(count, dtype=torch.bool) if thin else honest > 0.5
    keep[order[: max(1, count // (2 if thin else 4))]] = True

    def reason(row: int) -> str:
        if thin:
            return "among the worse half, while little is known of the clients"
        return f"honest with probability {float(honest[row]):.2g}, below the cut at 0.5"

    return progress.score(honest, math.nan if thin else 0.5).drop(~keep, NAME, reason)


def _bound(updates: Tensor, lengths: Tensor, usual: float, attacked: bool) -> None:
    """Lengths within ½ and 1 of the usual one while there may be an attack; else at most twice it."""
    low, high = (usual / 2, usual) if attacked else (0.0, 2 * usual)
    factors = torch.where(lengths > 0, lengths.clamp(low, high) / lengths.clamp_min(1e-30), 0.0)
    for row in (factors != 1).nonzero().flatten().tolist():
        updates[row].mul_(float(factors[row]))


def _votes(products: Tensor, lengths: Tensor) -> Tensor:
    """One for every client, shared among those who send nearly the same."""
    scale = lengths[:, None] * lengths
    alike = torch.where(scale > 0, products / scale.clamp_min(1e-30), 0.0) > SAME
    return 1.0 / alike.sum(dim=1).clamp_min(1).double()
