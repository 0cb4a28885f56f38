"""An experiment's settings: one frozen class a section. Deep code receives the section it needs."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from thistle.experiments.errors import UserError
from thistle.protocol.text import printable

Value = bool | int | float | str

Positive = Annotated[int, Field(ge=1, lt=2**63)]  # Flower's run config knows no larger numbers
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Trim = Annotated[float, Field(ge=0.0, lt=0.5)]


def dashed(name: str) -> str:
    return name.replace("_", "-")


class Section(BaseModel):
    """Base of all sections: frozen, strict about types, keys written with dashes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=dashed, validate_by_name=True)


class Open(Section):
    """A section with a name, and with settings that only what has that name knows: its keys are open."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Value] = Field(init=False)

    @property
    def options(self) -> dict[str, Value]:
        """The settings that were given, or all of them once the experiment is resolved."""
        return dict(self.__pydantic_extra__)


class Run(Section):
    """Where the run folder is, and whether to continue it."""

    name: str = ""
    out: str = "runs"
    resume: bool = False


class Task(Section):
    """Which data, how it is shared out, and what the server holds itself."""

    name: str = "digits"
    data_dir: str = ""
    train_size: Natural = 0
    client_size: Positive = 50
    clients: Positive = 50
    partition: Literal["iid", "dirichlet-even", "dirichlet", "shards", "resample"] = "dirichlet-even"
    alpha: AboveZero = 0.3
    shards: Positive = 2
    min_size: Positive = 1
    server_data: str = "rendered"
    server_size: Natural = 0
    server_font: str = ""


class Model(Section):
    """Which network. `dropout`: true = the layout's own rates, false = none, a number = that rate."""

    name: str = "auto"
    dropout: bool | Annotated[float, Field(ge=0.0, lt=1.0)] = True


class Network(Model):
    """A model with what the clients' training asks of it: no keys of its own, see `Experiment.network`."""

    head: Literal["linear", "cosine"] = "linear"
    norm: Literal["single", "dual"] = "single"


Default = Literal["default"]


class Client(Section):
    """Who trains in a round, and how: the recipe of SGD, then adversarial examples and calibration (CalFAT).

    `epsilon` and `step` are in units of the pixels, which are in [0, 1].
    """

    per_round: Positive = 10
    min_replies: Positive = 1
    timeout: AboveZero = 600.0
    limit: NonNegative = 0.0
    epochs: Positive = 2
    batch_size: Positive = 10
    lr: AboveZero = 0.1
    lr_schedule: str = "constant"
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    weight_decay: NonNegative = 1e-4
    max_examples: Positive = 10_000
    clip: AboveZero | Literal["auto", "off"] = "auto"
    objective: Literal["standard", "pgd", "ckl", "mix", "trades", "mart", "gairat", "fedrbn"] = "standard"
    calibration: Literal["none", "calfat", "logit-adjust", "robal"] = "none"
    calibration_in: Literal["both", "loss", "examples"] = "both"
    adversarial_ratio: Fraction | Default = "default"
    adversarial_clients: str = ""
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    step: Annotated[float, Field(gt=0.0, le=1.0)] = 0.04
    steps: Positive = 5
    prior_delta: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    logit_scale: AboveZero = 1.0
    warmup: Natural = 0
    augment: bool = False

    @property
    def plain(self) -> bool:
        """Whether this is nothing but SGD on the cross-entropy of the images as they are."""
        return self.objective == "standard" and self.calibration == "none" and not self.augment

    @property
    def ratio(self) -> float:
        """The part of each batch that is made adversarial."""
        if self.adversarial_ratio != "default":
            return self.adversarial_ratio
        return {"standard": 0.0, "mix": 0.5}.get(self.objective, 1.0)

    @property
    def time_limit(self) -> float:
        """Seconds that one client may take: by default so few that whoever it held up can be tried again."""
        return self.limit or self.timeout / 3


TERMS = tuple(
    f"client.{name}"
    for name in (
        "objective",
        "calibration",
        "calibration-in",
        "adversarial-ratio",
        "adversarial-clients",
        "epsilon",
        "step",
        "steps",
        "prior-delta",
        "logit-scale",
        "warmup",
        "augment",
    )
)
"""The settings of adversarial and calibrated training: what the strategy `calfat` sends along with the model."""


class Evaluate(Section):
    """How often the global model is measured, and over how many evaluations it is averaged."""

    every: Positive = 5
    window: Positive = 4
    batch_size: Positive = 100
    attacks: str = ""
    attack_samples: Natural = 500


class Stop(Section):
    """When a run ends before its last round: at an accuracy, or once evaluations bring no new best; 0: never.

    It fails after `lost_rounds` in a row in which the model learnt nothing; `lost_if_rejected` says whether those
    count in which it was the guard that found nothing to learn from.
    """

    accuracy: Fraction = 0.0
    patience: Natural = 0
    lost_rounds: Natural = 3
    lost_if_rejected: bool = True


class Runtime(Section):
    """What the run may use. `workers` 0: one a core; `chunk` 0: all clients of a host in one message."""

    workers: Natural = 0
    chunk: Natural = 0
    ray_address: str = ""
    max_clients_per_node: Positive = 10_000
    device: str = "auto"


class Strategy(Open):
    """Which strategy, and its settings: which ones there are is its own affair (thistle.strategies.registry)."""

    name: str = "fedavg"


class Attack(Open):
    """Which simulated clients attack (a fraction drawn from the seed, or explicit ids "0,3,7-9"), how and when.

    `strength` is the attack's main parameter; what else it has is its own affair (thistle.attacks.registry).
    `start` and `stop` are the first and last round in which they attack, `stop` 0: to the end.
    """

    kind: str = "none"
    fraction: Fraction = 0.0
    clients: str = ""
    start: Positive = 1
    stop: Natural = 0
    strength: NonNegative | Default = "default"
    omniscient: bool = False


def learning_rate(client: Client, number: int, rounds: int) -> float:
    """The clients' rate in round `number` (1 … rounds): constant, cosine to zero, or step:R1,R2,…:FACTOR."""
    schedule = client.lr_schedule
    if schedule == "constant":
        return client.lr
    if schedule == "cosine":
        return client.lr * (1 + math.cos(math.pi * (number - 1) / rounds)) / 2
    try:
        kind, given, factor = schedule.split(":")
        milestones = [int(milestone) for milestone in given.split(",")]
        rate = client.lr * float(factor) ** sum(number > milestone for milestone in milestones)
        if kind == "step" and min(milestones) >= 1 and float(factor) > 0 and 0 < rate < math.inf:
            return rate
    except (ValueError, OverflowError):
        pass
    raise UserError(
        f"client.lr-schedule = {schedule!r}: should be constant, cosine or step:R1,R2,…:FACTOR, with rounds from 1 on, "
        "a factor above 0, and rates that stay above 0"
    )


LONGEST_RANGE = 40
"""Characters of two ids and a dash; Python refuses numbers of some thousand digits."""


def parse_ids(key: str, text: str, count: int, most: int | None = None) -> list[int]:
    """Client ids from "0,3,7-9", each below `count`, `most` in all; ranges are bounded before they are expanded."""
    ids: set[int] = set()
    asked = 0
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > LONGEST_RANGE:
            raise UserError(f"{key} = {printable(text)!r}: {printable(part)!r} is not a client id or a range like 7-9")
        low, high = int(first), int(last if dash else first)
        if not low <= high < count:
            raise UserError(f"{key} = {text!r}: {part!r} is outside of 0-{count - 1}")
        asked += high - low + 1
        if most is not None and asked > most:
            raise UserError(f"{key} = {text!r}: more than {most} clients")
        ids.update(range(low, high + 1))
    return sorted(ids)
