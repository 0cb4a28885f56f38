"""From a client's orders to what it does: the one place where an attack's name becomes its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thistle.attacks.poisoning.collusion import Adaptive, Alie, Collusion, Ipm, Mimic, MinMax, MinSum, alie_z
from thistle.attacks.poisoning.data import Backdoor, DataAttack, LabelFlip
from thistle.attacks.poisoning.updates import Gaussian, Scale, SignFlip, UpdateAttack, Zero
from thistle.attacks.roles import PANEL, expected_attackers
from thistle.attacks.table import strength_of
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import is_own, make_own, wrong_result
from thistle.experiments.settings import Attack


@dataclass(frozen=True)
class Poison:
    """What differs from honest work, in the order in which it happens. Without any of it, nothing does."""

    rate: float = 1.0
    """Times the learning rate."""
    data: DataAttack | None = None
    update: UpdateAttack | None = None
    collusion: Collusion | None = None
    panel: int = PANEL
    """How many trainings of the panel the collusion wants to see."""


@dataclass(frozen=True)
class Facts:
    """What the attacks' formulas need besides their settings: C classes, f attackers among n clients a round."""

    classes: int
    n: int
    f: int

    @classmethod
    def of(cls, experiment: Experiment, attack: Attack, classes: int) -> Facts:
        n = experiment.client.per_round
        return cls(classes, n, expected_attackers(attack, experiment.task.clients, n, experiment.seed))


def make_poison(attack: Attack, facts: Facts) -> Poison:
    """The parts of the attack that these orders name (`mix` has become one of its two by then)."""
    if is_own(attack.kind):
        return _own(attack, facts)
    return MAKERS[attack.kind](attack, strength_of(attack), facts)


def check_own(experiment: Experiment, classes: int) -> None:
    """Try the user's own factory, if the experiment names one, before anything starts."""
    attack = experiment.attack
    if is_own(attack.kind):
        _own(attack, Facts.of(experiment, attack, classes))


def _own(attack: Attack, facts: Facts) -> Poison:
    """What the user's factory makes of (attack, facts): a Poison, or a function from an update to what is sent."""
    key, name = "attack.kind", attack.kind
    made = make_own(name, key, attack.model_copy(update={"strength": strength_of(attack)}), facts)
    if callable(made):
        return Poison(update=made)
    if not isinstance(made, Poison):
        raise wrong_result(name, key, "a Poison, or a function of an update and a generator", made)
    return made


def _alie(attack: Attack, z: float | None, facts: Facts) -> Poison:
    return Poison(collusion=Alie(alie_z(facts.n, facts.f) if z is None else z))


MAKERS: dict[str, Callable[[Attack, Any, Facts], Poison]] = {
    "sign-flip": lambda _, nu, __: Poison(update=SignFlip(nu)),
    "label-flip": lambda _, rate, facts: Poison(rate=rate, data=LabelFlip(facts.classes)),
    "gaussian": lambda _, s, __: Poison(update=Gaussian(s)),
    "zero": lambda *_: Poison(update=Zero()),
    "scale": lambda _, nu, __: Poison(update=Scale(nu)),
    "backdoor": lambda attack, share, _: Poison(data=Backdoor(attack.target, share), update=Scale(attack.boost)),
    "alie": _alie,
    "ipm": lambda _, epsilon, __: Poison(collusion=Ipm(epsilon)),
    "min-max": lambda *_: Poison(collusion=MinMax()),
    "min-sum": lambda *_: Poison(collusion=MinSum()),
    "mimic": lambda *_: Poison(collusion=Mimic(), panel=1),
    "adaptive": lambda _, margin, __: Poison(collusion=Adaptive(margin)),
}
