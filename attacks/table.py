"""The poisoning attacks by name: what each does, knows and costs to know, and what its strength means. Data only."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Literal

from thistle.experiments.errors import UserError
from thistle.experiments.plugins import is_own
from thistle.experiments.settings import Attack, Default

Knowledge = Literal["nothing", "own data", "colluders", "honest clients"]

_ROFSL, _SHEJWALKAR = "RoFSL", "Shejwalkar & Houmansadr 2021"


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    about: str
    knows: Knowledge
    paper: str = ""
    strength: str = ""
    """What `attack.strength` means; empty: the attack has none."""
    default: float | None = None
    """What "default" means; None: the attack works it out."""
    declared: tuple[float | Default, ...] = ("default",)
    """The strengths at which docs/results.md measures it."""
    most: float = math.inf


ATTACKS: dict[str, Entry] = {
    "none": Entry("every client is honest", "nothing"),
    "sign-flip": Entry("−ν u", "own data", "Damaskinos et al. 2018", "ν", 5.0, (1.0, 5.0)),
    "label-flip": Entry(
        "trains on class c as c+1 mod C", "own data", "Biggio et al. 2012", "times the learning rate", 1.0, (1.0, 2.0)
    ),
    "gaussian": Entry(
        "noise instead of an update", "own data", "Blanchard et al. 2017", "‖noise‖ / ‖u‖", 10.0, (10.0, 100.0)
    ),
    "zero": Entry("sends the model back as it came", "nothing"),
    "scale": Entry("ν u", "own data", "Bagdasaryan et al. 2020", "ν", 10.0, (10.0, 50.0)),
    "backdoor": Entry(
        "a 3×3 corner patch means class attack.target; sends attack.boost · u",
        "own data",
        "Bagdasaryan et al. 2020",
        "share of each batch that is stamped",
        0.5,
        (0.25, 0.5),
        most=1.0,
    ),
    "alie": Entry("a little is enough: μ − zσ", "colluders", "Baruch et al. 2019", "z", None, ("default", 1.5)),
    "ipm": Entry("inner product manipulation: −ε μ", "colluders", "Xie et al. 2020", "ε", 0.5, (0.5, 10.0)),
    "min-max": Entry("μ − γσ, no farther from any update than two are apart", "colluders", _SHEJWALKAR),
    "min-sum": Entry("μ − γσ, no farther from all updates than one of them is", "colluders", _SHEJWALKAR),
    "mimic": Entry("all copy one honest client", "honest clients", "Karimireddy et al. 2022"),
    "adaptive": Entry(
        "as harmful as an update can be that a server with data of its own takes for descent",
        "colluders",
        "",
        "cosine with the honest mean that is kept",
        0.1,
        (0.1, 0.5),
        most=1.0,
    ),
    "mix": Entry(
        "half flip signs, half flip labels, each with a strength of its own",
        "own data",
        _ROFSL,
        "times the strengths",
        1.0,
        (0.5, 1.0),
    ),
}


OWN = Entry("your own", "colluders", strength="what your function makes of it", default=1.0)
"""The row of every module:factory."""


def find(kind: str, key: str = "attack.kind") -> Entry:
    """The table's row, or an error that names the nearest."""
    if is_own(kind):
        return OWN
    if kind not in ATTACKS:
        near = difflib.get_close_matches(kind, ATTACKS, n=1, cutoff=0.0)
        raise UserError(f"{key} = {kind!r}: no such attack; did you mean {near[0]}? (thistle list attacks)")
    return ATTACKS[kind]


def strength_of(attack: Attack) -> float | None:
    """The attack's strength, or its default; None: the attack works it out or has none."""
    return find(attack.kind).default if attack.strength == "default" else attack.strength


def check_attack(attack: Attack, clients: int, rounds: int | None = None, classes: int | None = None) -> None:
    """Refuse settings that do not fit together; `rounds` and `classes` are checked against where they are known."""
    check_kind(attack)
    _check_who(attack, clients)
    _check_when(attack, rounds)
    if attack.kind == "mimic" and not attack.omniscient:
        raise UserError("attack.kind = mimic: copies an honest client, so it needs attack.omniscient = true")
    if attack.kind == "backdoor" and classes is not None and attack.target >= classes:
        raise UserError(f"attack.target = {attack.target}: the task's classes are 0-{classes - 1}")


def check_kind(attack: Attack) -> None:
    """The attack by itself: its name, and a strength that it can have."""
    entry = find(attack.kind)
    if attack.strength == "default" or attack.kind == "none":
        return
    if not entry.strength:
        raise UserError(f'attack.strength = {attack.strength:g}: {attack.kind} has none; leave it "default"')
    if attack.strength > entry.most:
        raise UserError(
            f"attack.strength = {attack.strength:g}: for {attack.kind} it is the {entry.strength}, "
            f"at most {entry.most:g}"
        )


def _check_who(attack: Attack, clients: int) -> None:
    chosen = [key for key, value in (("fraction", attack.fraction), ("clients", attack.clients)) if value]
    if attack.kind == "none":
        if chosen:
            key = chosen[0]
            raise UserError(f"attack.{key} = {getattr(attack, key)}: nobody attacks with attack.kind = none; set it")
        return
    if len(chosen) == 2:
        raise UserError(f"attack.fraction = {attack.fraction:g} and attack.clients = {attack.clients!r}: set only one")
    if attack.fraction and round(attack.fraction * clients) == 0:
        raise UserError(
            f"attack.fraction = {attack.fraction:g}: of task.clients = {clients} that is nobody; "
            f"use at least {1 / clients:g}"
        )


def _check_when(attack: Attack, rounds: int | None) -> None:
    if attack.stop and attack.stop < attack.start:
        raise UserError(
            f"attack.stop = {attack.stop}: is before attack.start = {attack.start}; use 0 to attack to the end"
        )
    if attack.kind != "none" and rounds is not None and attack.start > rounds:
        raise UserError(f"attack.start = {attack.start}: the experiment ends after rounds = {rounds}")
