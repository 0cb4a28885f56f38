"""The attacks that models are measured with, by name. Data only: torch is not needed to check a name."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from typing import Literal

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Evaluate

LIBRARY = "pyautoattack"
MOST_STEPS = 1000
AA_CLASSES = 4
"""Its targeted attacks try three others at least."""


@dataclass(frozen=True)
class Evasion:
    """An attack of the L∞ engine: signed steps on a loss from a start.

    `best`: an image counts as broken if any point on the way is misclassified; otherwise the last one decides.
    """

    about: str
    paper: str
    steps: int
    quarter: bool = True
    """Steps of ε/4; otherwise one of ε."""
    start: Literal["image", "uniform"] = "image"
    loss: Literal["cross-entropy", "margin"] = "cross-entropy"
    best: bool = False


_PGD = "Madry et al. 2018"
EVASIONS: dict[str, Evasion] = {
    "fgsm": Evasion("one step of ε", "Goodfellow et al. 2015", 1, quarter=False),
    "bim": Evasion("20 steps of ε/4 from the image", "Kurakin et al. 2017", 20),
    "cw": Evasion(
        "30 steps of ε/4 on the margin; the best point counts", "Carlini & Wagner 2017", 30, loss="margin", best=True
    ),
    "pgd20": Evasion("20 steps of ε/4 from a random point; pgdK: K steps", _PGD, 20, start="uniform"),
}
OTHERS = {"natural": "the images as they are", "aa": "AutoAttack, standard version (Croce & Hein 2020); an extra"}


def find(name: str) -> Evasion:
    """The engine's attack of that name; any number of steps may follow `pgd`."""
    steps = re.fullmatch(r"pgd([1-9][0-9]*)", name)
    if steps and int(steps[1]) <= MOST_STEPS:
        return Evasion(f"{steps[1]} steps of ε/4 from a random point", _PGD, int(steps[1]), start="uniform")
    return EVASIONS[name]


def parse_attacks(key: str, text: str) -> list[str]:
    """Names from "natural,fgsm,pgd20", each once, in their order; refuses what there is not."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in OTHERS:
            try:
                find(name)
            except KeyError:
                known = ", ".join(["natural", *EVASIONS, "aa"])
                raise UserError(f"{key} = {text!r}: no attack is called {name!r} ({known})") from None
        if name == "aa" and importlib.util.find_spec(LIBRARY) is None:
            raise UserError(
                f"{key} = {text!r}: aa needs AutoAttack, an optional extra: pip install 'thistle-fl[autoattack]'"
            )
    return names


def check_evaluation(evaluate: Evaluate, classes: int | None = None) -> None:
    """Refuse attacks during training that there are not; with the task's `classes`, also what needs more of them."""
    names = parse_attacks("evaluate.attacks", evaluate.attacks)
    if classes is not None and "aa" in names:
        check_autoattack("evaluate.attacks", classes)


def check_autoattack(key: str, classes: int) -> None:
    if classes < AA_CLASSES:
        raise UserError(f"{key}: aa (AutoAttack) needs at least {AA_CLASSES} classes, the task has {classes}")
