"""What an attack consists of. Four kinds have a base class each; its `__call__` is the formula.

- `OnUpdate`: the client's own update u to what it sends instead;
- `OnData`: a batch to the one that it trains on;
- `ByColluders`: a panel of honest trainings (k × d, one update per row) to what all colluders send. The panel is
  theirs, or, with `attack.omniscient`, honest clients';
- `ByMemory`: u and what attackers saw and sent before to what it sends instead.

An attack that is more than one of these says so in its `poison`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from thistle.attacks.registry import Family, PoisoningAttack, setting
from thistle.attacks.roles import expected_attackers
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Attack, Fraction

DataAttack = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
UpdateAttack = Callable[[Tensor, torch.Generator], Tensor]
Collusion = Callable[[Tensor], Tensor]
DrawnCollusion = Callable[[Tensor, torch.Generator], Tensor]
Constraint = Callable[[Tensor, nn.Module, Mapping[str, Tensor]], Tensor]
"""(the loss of a batch, the model, the parameters that came) → the loss that is minimised."""


@dataclass(frozen=True)
class Past:
    """What attackers know of earlier rounds. They pool it: the one that is asked knows what any of them saw last."""

    model: Tensor
    """x_t: the model that came now."""
    before: Tensor | None = None
    """The model that came when one of them last attacked; None: this is the first time."""
    sent: Tensor | None = None
    """The update that was sent then."""
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    """What the attack wrote down itself."""

    @property
    def step(self) -> Tensor | None:
        """What the federation has made of the model since then."""
        return None if self.before is None else self.model - self.before


@dataclass(frozen=True)
class Sent:
    """What an attacker sends, and what it wants to know again."""

    update: Tensor
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    """In place of all earlier notes."""


Recollection = Callable[[Tensor, Past, torch.Generator], Sent]
Spared = Callable[[Past], Tensor | None]
"""Which parameters training leaves as they came, a boolean for each; None: it may change them all."""


@dataclass(frozen=True)
class Aimed:
    """What a look at the model has led to."""

    data: DataAttack
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    """To be remembered, besides those of what is sent."""


Aim = Callable[[nn.Module, Tensor, Tensor, Past, torch.Generator], Aimed]
"""(the model that came, the client's own images and labels, what is known) → what it trains on."""


@dataclass(frozen=True)
class Poison:
    """What differs from honest work, in the order in which it happens. Without any of it, nothing does."""

    rate: float = 1.0
    """Times the learning rate."""
    data: DataAttack | None = None
    aim: Aim | None = None
    """Makes `data` from the model that came and the client's own images and labels; changes neither."""
    constraint: Constraint | None = None
    """Another loss of the same batches."""
    spared: Spared | None = None
    update: UpdateAttack | None = None
    recollection: Recollection | None = None
    """What becomes of the update, where that depends on earlier rounds."""
    collusion: Collusion | None = None
    drawn: DrawnCollusion | None = None
    """A collusion with noise of each colluder's own."""
    panel: int | None = None
    """How many trainings the collusion needs; few attackers train repeatedly. None: up to five."""

    @property
    def changes_update(self) -> bool:
        """Whether something else is sent than what was trained."""
        return bool(self.colludes or self.update or self.recollection)

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
    number: int = 1
    """Of the round."""
    defence: Defence | None = None
    """For attackers that know the rule, or the whole defence."""
    seed: int = 0
    """Of the experiment: attackers draw from it what they must have in common."""

    @classmethod
    def of(cls, experiment: Experiment, attack: Attack, classes: int) -> Facts:
        n = experiment.client.per_round
        f = expected_attackers(attack, experiment.task.clients, n, experiment.seed)
        return cls(classes, n, f, seed=experiment.seed)


class Defence(Protocol):
    """The server's rule in the hands of an attacker (thistle.attacks.defence)."""

    @property
    def honest(self) -> tuple[int, ...]:
        """The honest clients of the round; empty: nobody knows."""

    def step(self, honest: Tensor, malicious: Tensor) -> Tensor:
        """The change of the model that it makes of these updates (k×d and f×d), before any learning of the server's."""

    def gradient(self) -> Tensor | None:
        """g0 of the server's data at the model that came; None: the server has none."""

    def learnt(self) -> Tensor:
        """What the federation has made of its first model so far."""

    def worst(self, honest: Tensor, copies: int, target: Tensor) -> list[Tensor]:
        """What its filters offer in closed form: updates of which `copies` pass, farthest along `target`."""


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

    family = "labels"

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        """The batch that it trains on."""
        raise NotImplementedError

    def poison(self, facts: Facts) -> Poison:
        """Only the data."""
        return Poison(data=partial(self, facts=facts))


@dataclass(frozen=True, kw_only=True)
class ByColluders(PoisoningAttack):
    """Sends what colluders have worked out together."""

    family: ClassVar[Family] = "colluders"
    jitter: Fraction = setting(
        "each colluder adds its own noise, of this share of the length, so that no two send the same", default=0.0
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


class ByMemory(PoisoningAttack):
    """Sends what follows from what attackers saw and sent before."""

    remembers = True

    def __call__(self, own: Tensor, past: Past, facts: Facts, generator: torch.Generator) -> Sent:
        """What is sent instead of `own`, and what to remember besides the model and that."""
        raise NotImplementedError

    def poison(self, facts: Facts) -> Poison:
        """Only the update."""
        return Poison(recollection=lambda own, past, generator: self(own, past, facts, generator))
