"""From a client's orders to what it does: a registered attack, or a factory of the user's own."""

from __future__ import annotations

from thistle.attacks.poisoning.parts import Facts, Poison
from thistle.attacks.registry import KEY, chosen
from thistle.experiments.choices import values_of
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import is_own, make_own, wrong_result
from thistle.experiments.settings import Attack

__all__ = ["Facts", "Poison", "check_own", "make_poison"]


def make_poison(attack: Attack, facts: Facts) -> Poison:
    """What a client does that has these orders."""
    return _own(attack, facts) if is_own(attack.kind) else chosen(attack).poison(facts)


def check_own(experiment: Experiment, classes: int) -> None:
    """Try the user's own factory, if the experiment names one, before anything starts."""
    attack = experiment.attack
    if is_own(attack.kind):
        _own(attack, Facts.of(experiment, attack, classes))


def _own(attack: Attack, facts: Facts) -> Poison:
    """What the user's factory makes of (attack, facts): a Poison, or a function from an update to what is sent."""
    name = attack.kind
    made = make_own(name, KEY, attack.model_copy(update=values_of(chosen(attack))), facts)
    if callable(made):
        return Poison(update=made)
    if not isinstance(made, Poison):
        raise wrong_result(name, KEY, "a Poison, or a function of an update and a generator", made)
    return made
