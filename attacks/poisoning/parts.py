"""What an attack consists of. Three kinds have a base class each; its `__call__` is the formula.

- `OnUpdate`: the client's own update u to what it sends instead;
- `OnData`: a batch to the one that it trains on;
- `ByColluders`: a panel of honest trainings (k × d, one update per row) to what all colluders send. The panel is
  theirs, or, with `attack.omniscient`, honest clients'.

An attack that is more than one of these says so in its `poison`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from thistle.attacks.registry import PoisoningAttack, setting
from thistle.attacks.roles import PANEL, expected_attackers
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Attack, Fraction

DataAttack = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
UpdateAttack = Callable[[Tensor, torch.Generator], Tensor]
Collusion = Callable[[Tensor], Tensor]
DrawnCollusion = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Poison:
    """What differs from honest work, in the order in which it happens. Without any of it, nothing does."""

    rate: float = 1.0
    """Times the learning rate."""
    data: DataAttack | None = None
    update: UpdateAttack | None = None
    collusion: Collusion | None = None
    drawn: DrawnCollusion | None = None
    """A collusion with noise of each colluder's own."""
    panel: int = PANEL
    """How many trainings of the panel the collusion wants to see."""

    @property
    def colludes(self) -> bool:
        """Whether a panel is asked for."""
        return bool(self.collusion or self.drawn)

    def collude(self, panel: Tensor, generator: torch.Generator) -> Tensor:
        """What this colluder sends."""
        if self.drawn:
            return self.drawn(panel, generator)
        assert self.collusion is not None
        return self.collusion(panel)


@dataclass(frozen=True)
class Facts:
    """What the attacks' formulas need besides their settings: C classes, f attackers among n clients per round."""

    classes: int
    n: int
    f: int

    @classmethod
    def of(cls, experiment: Experiment, attack: Attack, classes: int) -> Facts:
        n = experiment.client.per_round
        return cls(classes, n, expected_attackers(attack, experiment.task.clients, n, experiment.seed))


class OnUpdate(PoisoningAttack):
    """Sends another update than it trained."""

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        """What is sent instead of `own`; noise comes from the generator."""
        raise NotImplementedError

    def poison(self, facts: Facts) -> Poison:
        """Only the update."""
        return Poison(update=self)


class OnData(PoisoningAttack):
    """Trains on other data than it has."""

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        """The batch that it trains on."""
        raise NotImplementedError

    def poison(self, facts: Facts) -> Poison:
        """Only the data."""
        return Poison(data=partial(self, facts=facts))


@dataclass(frozen=True, kw_only=True)
class ByColluders(PoisoningAttack):
    """Sends what colluders have worked out together."""

    jitter: Fraction = setting(
        "each colluder adds noise of its own, of this share of the length, so that no two send the same", default=0.0
    )

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        """What all of them send."""
        raise NotImplementedError

    def send(self, panel: Tensor, facts: Facts, generator: torch.Generator) -> Tensor:
        """What one of them sends, before any jitter."""
        return self(panel, facts)

    def poison(self, facts: Facts) -> Poison:
        """Only what is sent."""
        return Poison(drawn=partial(self._drawn, facts=facts))

    def _drawn(self, panel: Tensor, generator: torch.Generator, facts: Facts) -> Tensor:
        sent = self.send(panel, facts, generator)
        if not self.jitter:
            return sent
        noise = torch.randn(sent.shape, generator=generator, dtype=sent.dtype)
        return sent + self.jitter * sent.norm() / noise.norm() * noise
