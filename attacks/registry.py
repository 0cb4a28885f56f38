"""The poisoning attacks by name. Each registers itself where it is written: one file, and nothing to edit elsewhere.

@attack("sign-flip", "Damaskinos et al. 2018", knows="own data")
class SignFlip(OnUpdate):
    \"\"\"−ν u.\"\"\"

    strength: NonNegative = setting("ν", default=5.0)

    def __call__(self, own, generator):
        return -self.strength * own

What an attack may be is in thistle.attacks.poisoning.parts. Nothing here imports torch before somebody asks for an
attack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, dataclass_transform

from thistle.experiments.choices import (
    DECLARED,
    Choices,
    Registered,
    about,
    checked,
    setting,
    settings_of,
    values_of,
)
from thistle.experiments.errors import UserError
from thistle.experiments.plugins import is_own
from thistle.experiments.settings import AboveZero, Attack, Natural, NonNegative, Value

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thistle.attacks.poisoning.parts import Facts, Poison
    from thistle.tasks.dataset import Shape

__all__ = [
    "ATTACKS",
    "Evaluated",
    "PoisoningAttack",
    "about",
    "attack",
    "attacks",
    "check_class",
    "chosen",
    "find",
    "setting",
    "settings_of",
]

T = TypeVar("T")
KEY, STRENGTH = "attack.kind", "strength"
LEFTOVERS: dict[str, Value] = {"boost": 5.0, "target": 0}
"""Settings of the backdoor that older versions wrote down for every attack; at their defaults they mean nothing."""
WHO = {"attack.fraction", "attack.clients"}
Knowledge = Literal["nothing", "past models", "own data", "colluders", "rule", "honest clients", "defence"]
KNOWLEDGE: tuple[Knowledge, ...] = (
    "nothing",
    "past models",
    "own data",
    "colluders",
    "rule",
    "honest clients",
    "defence",
)
"""From the least to the most: the order of lists.

`past models`: what the server sent to any attacker before. `rule`: the colluders also know an aggregation rule, and the
server's data where the rule uses some. `defence`: they also know its state and honest clients.
"""
ALONE: frozenset[Knowledge] = frozenset({"nothing", "past models", "own data", "colluders"})
"""What an attacker can know on a real node: colluders are then itself, again and again."""
Family = Literal["updates", "labels", "backdoors", "colluders", "searches"]
"""What attackers change, or how they choose it: a page of the documents each."""
Suite = Literal["standard", "backdoor", "none"]
"""Of `thistle stress`: `standard` looks for the lowest accuracy, `backdoor` for the highest success of the attack."""


@dataclasses.dataclass(frozen=True)
class Attacker:
    """One attacker."""

    client: int
    seed: int
    number: int | None
    """0, 1, … in the seed's order; None: a real node, which does not know of others."""
    count: int
    """How many there are."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """What an evaluation shows to the attack: the global model, the test set, and what attackers wrote down."""

    model: nn.Module
    pixels: Tensor
    labels: Tensor
    batch_size: int
    seed: int = 0
    notes: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """The last ones of simulated attackers."""

    @property
    def shape(self) -> Shape:
        """Of one input; of images: channels, height, width."""
        return tuple(self.pixels.shape[1:])


class PoisoningAttack(Registered):
    """An attack with its settings. `strength`, where it has that, is the main one: `attack.strength`."""

    knows: ClassVar[Knowledge] = "own data"
    family: ClassVar[Family] = "updates"
    suite: ClassVar[Suite] = "standard"
    needs_classes: ClassVar[bool] = False
    """Whether its formula uses the number of classes."""
    remembers: ClassVar[bool] = False
    """Whether it goes by what attackers saw and sent in earlier rounds (`ByMemory`)."""
    has_parts: ClassVar[bool] = False
    """Whether every attacker has a part of its own (`part`)."""
    stamps: ClassVar[bool] = False
    """Whether it changes images, and nothing else will do."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Settings that the user must give: it cannot run with their defaults."""

    def poison(self, facts: Facts) -> Poison:
        """What a client does that carries it out."""
        raise NotImplementedError

    def tries_out(self) -> str | None:
        """The strategy that it tries out before it sends: its name, `used` for the experiment's own, None: none."""
        return None

    def part(self, attack: Attack, who: Attacker) -> Attack:
        """What this attacker does of the attack; most attacks are the same for all."""
        return attack

    def check(self, classes: int | None) -> None:
        """Refuse settings that do not fit together, or a task with this many classes (None: not known yet)."""

    def work_out(self, n: int, f: int) -> float | None:
        """Its strength with f attackers among n clients per round; None: it has none, or finds it as it attacks."""
        return getattr(self, STRENGTH, None)

    def check_images(self, shape: Shape) -> None:
        """Refuse a task with images of this shape (channels, height, width), if it cannot attack that."""

    def measure(self, evaluated: Evaluated) -> dict[str, float]:
        """What else evaluations of the global model should report."""
        return {}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, dataclasses.field))
def attack(name: str, paper: str = "", *, knows: Knowledge, suite: Suite | None = None) -> Callable[[type[T]], type[T]]:
    """Register a class under this name. It becomes a frozen dataclass; its docstring's first line describes it.

    `suite`: which suite of `thistle stress` tries it; by default `backdoor` where its success is measured.
    """

    def enter(cls: type[T]) -> type[T]:
        made: Any = dataclasses.dataclass(kw_only=True, frozen=True)(cls)
        made.knows = knows
        made.suite = suite or ("standard" if made.measure is PoisoningAttack.measure else "backdoor")
        ATTACKS.enter(made, name, paper)
        return made

    return enter


def _rank(cls: type[PoisoningAttack]) -> tuple[bool, int, str]:
    return cls.name != "none", KNOWLEDGE.index(cls.knows), cls.name


ATTACKS: Choices[PoisoningAttack] = Choices("attack", "attacks", KEY, "thistle.attacks.poisoning", _rank)
attacks = ATTACKS.all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(PoisoningAttack):
    """Your own."""

    knows = "colluders"
    remembers = True
    strength: NonNegative = setting("for your function to interpret", default=1.0)
    boost: AboveZero = setting("for your function to interpret", default=5.0)
    target: Natural = setting("for your function to interpret", default=0)


def find(kind: str, key: str = KEY) -> type[PoisoningAttack]:
    """The attack of this name, or that of every module:factory; or an error that offers the nearest."""
    return Own if is_own(kind) else ATTACKS.choose(kind, key)


def chosen(attack: Attack) -> PoisoningAttack:
    """The attack that these settings name, with its own settings; raises UserError for one that it cannot have."""
    cls = find(attack.kind)
    options = _without_leftovers(cls, attack.options)
    ATTACKS.refuse_unknown(cls, attack.kind, options)
    if attack.strength != "default" and attack.kind != "none":
        _check_strength(cls, attack.kind, attack.strength)
        options[STRENGTH] = attack.strength
    return cls(**values_of(checked(cls, options, ATTACKS.prefix)))


def left_behind(keys: Mapping[str, Any], changes: Mapping[str, Any]) -> set[str]:
    """The keys that these changes drop: another attack does without the old one's settings that it does not have.

    Nor does it take over the old one's strength, which would mean something else. Where nobody attacks any more, it
    does not matter who did.
    """
    dropped = ATTACKS.left_behind(keys, changes, lambda kind, _: find(kind))
    if KEY in keys and changes.get(KEY, keys[KEY]) != keys[KEY]:
        dropped |= {ATTACKS.prefix + STRENGTH} - changes.keys()
    return dropped | (WHO - changes.keys() if changes.get(KEY) == "none" else set())


def check_class(name: str, value: int, classes: int | None) -> None:
    """Refuse a setting that should be the number of a class, and is none of the task's (None: not known yet)."""
    if classes is not None and value >= classes:
        raise UserError(f"attack.{name} = {value}: the task's classes are 0-{classes - 1}")


def _without_leftovers(cls: type[PoisoningAttack], options: Mapping[str, Value]) -> dict[str, Value]:
    """Without what run folders of older versions say of every attack."""
    known = settings_of(cls).model_fields
    return {name: value for name, value in options.items() if name in known or LEFTOVERS.get(name) != value}


def _check_strength(cls: type[PoisoningAttack], kind: str, strength: float) -> None:
    if STRENGTH not in settings_of(cls).model_fields:
        raise UserError(f'attack.strength = {strength:g}: {kind} has none; leave it "default"')
    if strength > most(cls):
        raise UserError(
            f"attack.strength = {strength:g}: for {kind} it is the {strength_of(cls)}, at most {most(cls):g}"
        )


def strength_of(cls: type[PoisoningAttack]) -> str:
    """What `attack.strength` means; empty: the attack has none."""
    field = settings_of(cls).model_fields.get(STRENGTH)
    return (field.description or "") if field else ""


def default_strength(cls: type[PoisoningAttack]) -> str:
    """What `attack.strength = "default"` means; empty: the attack has none."""
    field = settings_of(cls).model_fields.get(STRENGTH)
    if field is None:
        return ""
    return "worked out" if field.default is None else f"{field.default:g}"


def most(cls: type[PoisoningAttack]) -> float:
    """The largest strength that its type allows."""
    bounds = settings_of(cls).model_fields[STRENGTH].metadata
    return min((bound.le for bound in bounds if hasattr(bound, "le")), default=float("inf"))


def declared(cls: type[PoisoningAttack]) -> tuple[float | str, ...]:
    """The strengths at which docs/results.md measures it."""
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name == STRENGTH:
            return tuple(field.metadata[DECLARED]) or ("default",)
    return ("default",)
