"""What an experiment may ask of its attackers; and the experiment with every setting of its attack."""

from __future__ import annotations

from thistle.attacks.registry import STRENGTH, chosen
from thistle.attacks.roles import expected_attackers
from thistle.experiments.choices import values_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Attack
from thistle.tasks.dataset import Shape


def resolve_attack(experiment: Experiment) -> Experiment:
    """The same experiment with every setting of its attack and none of another.

    `attack.strength` becomes the number that it stands for; "default" stays where the attack has no strength, or finds
    it anew in every round.
    """
    attack, made = experiment.attack, chosen(experiment.attack)
    n = experiment.client.per_round
    strength = made.work_out(n, expected_attackers(attack, experiment.task.clients, n, experiment.seed))
    options = {name: value for name, value in values_of(made).items() if name != STRENGTH}
    common = {name: getattr(attack, name) for name in Attack.model_fields}
    common[STRENGTH] = "default" if strength is None else strength
    return experiment.model_copy(update={"attack": Attack.model_validate({**common, **options})})


def check_attack(
    attack: Attack,
    clients: int,
    rounds: int | None = None,
    classes: int | None = None,
    shape: Shape | None = None,
) -> None:
    """Refuse settings that do not fit together, or the task; `rounds`, `classes` and `shape`: as far as known."""
    made = chosen(attack)
    _check_who(attack, clients)
    _check_when(attack, rounds)
    if made.knows in ("honest clients", "defence") and not attack.omniscient:
        raise UserError(f"attack.kind = {attack.kind}: needs to know honest clients; set attack.omniscient = true")
    made.check(classes)
    if shape is not None and made.stamps and len(shape) != 3:
        sides = "×".join(map(str, shape))
        raise UserError(
            f"attack.kind = {attack.kind}: changes images; the task's inputs are {sides}: use label-flip-targeted"
        )
    if shape is not None:
        made.check_images(shape)


def _check_who(attack: Attack, clients: int) -> None:
    given = [key for key, value in (("fraction", attack.fraction), ("clients", attack.clients)) if value]
    if attack.kind == "none":
        if given:
            key = given[0]
            raise UserError(f"attack.{key} = {getattr(attack, key)}: nobody attacks with attack.kind = none; set it")
        return
    if len(given) == 2:
        raise UserError(f"attack.fraction = {attack.fraction:g} and attack.clients = {attack.clients!r}: set only one")
    if attack.fraction and round(attack.fraction * clients) == 0:
        raise UserError(
            f"attack.fraction = {attack.fraction:g}: that is less than one of task.clients = {clients}; "
            f"use at least {1 / clients:g}"
        )


def _check_when(attack: Attack, rounds: int | None) -> None:
    if attack.stop and attack.stop < attack.start:
        raise UserError(
            f"attack.stop = {attack.stop}: is before attack.start = {attack.start}; use 0 to attack to the end"
        )
    if attack.kind != "none" and rounds is not None and attack.start > rounds:
        raise UserError(f"attack.start = {attack.start}: the experiment ends after rounds = {rounds}")
