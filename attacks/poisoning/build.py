"""From a client's orders to what it does: the one place where an attack's name becomes its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attacks.poisoning.collusion import Adaptive, Alie, Collusion, Ipm, Mimic, MinMax, MinSum, alie_z
from attacks.poisoning.data import Backdoor, DataAttack, LabelFlip
from attacks.poisoning.updates import Gaussian, Scale, SignFlip, UpdateAttack, Zero
from attacks.roles import PANEL
from attacks.table import strength_of
from exchange.settings import Attack


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


def make_poison(attack: Attack, facts: Facts) -> Poison:
    """The parts of the attack that these orders name (`mix` has become one of its two by then)."""
    return MAKERS[attack.kind](attack, strength_of(attack), facts)


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
