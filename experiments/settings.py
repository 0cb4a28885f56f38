"""An experiment's settings: one frozen class per section. Deep code receives the section it needs.

The text below a field is its documentation, and its type says which values are allowed: `make generate` makes the
guide's tables and the keys that pyproject.toml declares from both.
"""

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

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=dashed,
        validate_by_name=True,
        use_attribute_docstrings=True,
    )


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
    """The run folder's name; empty: the file's or preset's name."""
    out: str = "runs"
    """The folder for run folders."""
    resume: bool = False
    """Continue the run of this name; `thistle resume` sets it."""
    until: Natural = 0
    """Pause after this round; `thistle resume` continues from there to the end, with the same result. 0: never."""
    audit: Literal["auto", "on", "off"] = "auto"
    """Whether the run is recorded in a signed [audit log](security.md#audit-log); `auto`: yes for deployed runs and for
    simulations that keep replies."""
    keep_replies: bool = False
    """Keep every reply as received, so that `thistle audit verify` can compute each round's model again. Each reply is
    as large as the model."""

    def is_audited(self, deployed: bool) -> bool:
        """Whether there is an audit log."""
        return self.audit == "on" or (self.audit == "auto" and (deployed or self.keep_replies))


class Task(Section):
    """Which data, how they are divided among clients, and what the server holds itself."""

    name: str = "digits"
    """The data: a name of `thistle list tasks`, `folder:PATH`, `npz:PATH`, `csv:PATH`, `parquet:PATH` or
    [your own](own.md#a-task) `module:factory`."""
    data_dir: str = ""
    """The folder with the files of a named data set; relative paths after `folder:`, `npz:`, `csv:` and `parquet:` are
    looked up here first. Empty: the cache, into which named sets are downloaded."""
    label: str = "label"
    """Tables: the column with the class."""
    categorical: str = ""
    """Tables: columns to read as categories although they hold only numbers, such as `ward,grade`."""
    ignore: str = ""
    """Tables: columns to leave out, such as `patient_id`."""
    test_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Tables in a single file: the share of the rows kept for testing, the same for every class."""
    bits: Annotated[int, Field(ge=9, le=16)] = 16
    """How many bits the pixels of images deeper than 8 bits use: 12 in most 16-bit X-ray and CT files."""
    train_size: Natural = 0
    """Use only this many training images, with the classes in proportion; 0: all."""
    client_size: Positive = 50
    """Images per client, for the partition `resample` only."""
    clients: Positive = 50
    """How many clients there are, numbered from 0."""
    partition: Literal["iid", "dirichlet-even", "dirichlet", "shards", "resample"] = "dirichlet-even"
    """How training images are divided among clients, see [Partitions](#partitions)."""
    alpha: AboveZero = 0.3
    """Concentration of the Dirichlet distributions: the smaller, the more the clients differ."""
    shards: Positive = 2
    """Shards per client, for the partition `shards`."""
    min_size: Positive = 1
    """The fewest images that a client may hold; a partition that gives a client fewer is refused."""
    server_data: str = "rendered"
    """The server's own data: `none`, `rendered`, `folder:PATH`, `npz:PATH`, `csv:PATH` or `holdout:N`, see
    [Server data](#server-data)."""
    server_size: Natural = 0
    """Use only this many of the server's images, with the classes in proportion; 0: all."""
    server_font: str = ""
    """Font of the rendered characters: a font that matplotlib ships, or the path of a .ttf or .otf file. Empty:
    DejaVuSans."""


class Model(Section):
    """Which network."""

    name: str = "auto"
    """A name of `thistle list models`, or [your own](own.md#a-model) `module:factory`."""
    dropout: bool | Annotated[float, Field(ge=0.0, lt=1.0)] = True
    """`true`: the model's own rates; `false`: none; a number: that rate in every dropout layer."""


class Network(Model):
    """A model with what the clients' training requires of it: no keys of its own, see `Experiment.network`."""

    head: Literal["linear", "cosine"] = "linear"
    norm: Literal["single", "dual"] = "single"


Default = Literal["default"]


class Client(Section):
    """Who trains in a round, and how: the recipe of SGD, then adversarial examples and calibration (CalFAT)."""

    per_round: Positive = 10
    """Clients that train per round."""
    min_replies: Positive = 1
    """With fewer accepted replies, the round leaves the model unchanged."""
    timeout: AboveZero = 600.0
    """Seconds that a round waits for its replies; a run waits as long for its hosts at the start."""
    limit: NonNegative = 0.0
    """Seconds that one client may take on its host. After that it is stopped and only it fails, see
    [Engines](#engines). 0: a third of `client.timeout`."""
    epochs: Positive = 2
    """Passes over a client's images per round."""
    batch_size: Positive = 10
    """Images per step of SGD."""
    lr: AboveZero = 0.1
    """Learning rate."""
    lr_schedule: str = "constant"
    """`constant`, `cosine` (to zero over all rounds) or `step:R1,R2,…:FACTOR` (multiplied by FACTOR after each of
    these rounds)."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Momentum of SGD, within a round."""
    weight_decay: NonNegative = 1e-4
    """Weight decay of SGD."""
    precision: Literal["float32", "bf16"] = "float32"
    """`bf16`: forward and backward passes in bfloat16, if the host supports it; weights and updates stay float32. See
    [scale](scale.md#half-precision)."""
    max_examples: Positive = 10_000
    """The most examples that a client can count for, whatever it claims."""
    clip: AboveZero | Literal["auto", "off"] = "auto"
    """An update longer than this many times the usual length is scaled down to that length, with any strategy, see
    [One long reply](#one-long-reply). `off`: never. `auto`: 1.5 for means when `thistle deploy submit` makes the
    experiment, otherwise off."""
    local_bound: NonNegative = 0.0
    """Each client clips its update to this length before sending it; 0: no clipping."""
    local_noise: NonNegative = 0.0
    """Each client then adds Gaussian noise of this many times `client.local-bound` to every parameter, and reports
    neither its loss nor its number of examples, see [Differential privacy](security.md#differential-privacy).
    0: none."""
    local_delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """The δ for which the ε of `client.local-noise` is stated."""
    objective: str = "standard"
    """What clients minimise: a name of `thistle list objectives`, see [Adversarial training](#adversarial-training)."""
    calibration: str = "none"
    """How clients correct their logits for class frequencies: a name of `thistle list calibrations`."""
    calibration_in: Literal["both", "loss", "examples"] = "both"
    """Where a calibration (`calfat`, `calfat-code`, `robal`) applies: in the model's loss, in the search for
    adversarial examples, or in both."""
    adversarial_ratio: Fraction | Default = "default"
    """The share of each batch that is made adversarial; `default`: 0.5 for `mix`, 0 for `standard`, otherwise 1."""
    adversarial_clients: str = ""
    """The ids of the clients that train adversarially, such as `0,3,7-9`; the others see only clean images. Empty:
    all."""
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """ε: how far an adversarial example may change a pixel (pixels are in [0, 1]), in training and in evaluations."""
    step: Annotated[float, Field(gt=0.0, le=1.0)] = 0.04
    """Step size of the search for adversarial examples in training, in units of the pixels."""
    steps: Positive = 5
    """Number of steps in that search."""
    prior_delta: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    """δ: added to each class's share, so that a class that a client never saw has a logarithm. Also for class-aware
    heads."""
    logit_scale: AboveZero = 1.0
    """Calibration `calfat`: s in s·f + log π. The authors' published code uses 10, only in the loss: `calfat-code`."""
    warmup: Natural = 0
    """Objective `gairat`: rounds before it weights images."""
    augment: bool = False
    """Whether images are cropped at random (4 pixels of padding) and mirrored."""

    @property
    def plain(self) -> bool:
        """Whether this is only SGD on the cross-entropy of unchanged images."""
        return self.objective == "standard" and self.calibration == "none" and not self.augment

    @property
    def time_limit(self) -> float:
        """Seconds that one client may take: by default few enough to retry the clients that it held up."""
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
    """Rounds between two evaluations on the test set; the last round is always evaluated."""
    window: Positive = 4
    """`final_accuracy` is the mean of the last evaluations, at most this many and only those in the last quarter of the
    rounds."""
    batch_size: Positive = 100
    """Images per batch in evaluations."""
    attacks: str = ""
    """Attacks on the model at every evaluation, such as `fgsm,pgd20`, see [Robustness](#robustness); empty: none."""
    attack_samples: Natural = 500
    """How many test images are attacked, the same each time; 0: all."""


class Stop(Section):
    """When a run ends before its last round."""

    accuracy: Fraction = 0.0
    """The run ends with the first evaluation that reaches this accuracy; 0: never."""
    patience: Natural = 0
    """The run ends when this many evaluations in a row are no better than the best one before; 0: never."""
    epsilon: NonNegative = 0.0
    """The run ends before a round that would exceed this ε, see
    [Differential privacy](security.md#differential-privacy); 0: never."""
    lost_rounds: Natural = 3
    """The run fails after this many rounds in a row in which the model learns nothing, see
    [Runs that fail](#runs-that-fail); 0: never."""
    lost_if_rejected: bool = True
    """Whether a round counts as lost if the guard rejected so many replies that there is no new model, or rejected the
    aggregate. Sweeps and the demo set `false`, because an attack that destroys a model is a result."""


class Runtime(Section):
    """What the run may use."""

    workers: Natural = 0
    """Hosts that train; 0: one per core."""
    chunk: Natural = 0
    """Clients per message to a host; 0: all its clients of the round, or as many as reply with 32 MiB. Use smaller
    chunks for hosts of unequal speed."""
    ray_address: str = ""
    """`HOST:PORT` of a Ray cluster to run on, see [scale](scale.md); empty: a private Ray on this machine."""
    max_clients_per_node: Positive = 10_000
    """The most clients that one deployed node may claim."""
    device: str = "auto"
    """`auto` (CUDA if available), `cpu` or `cuda`."""


class Strategy(Open):
    """Which strategy, and its settings, which the strategy itself defines (thistle.strategies.registry)."""

    name: str = "fedavg"
    """A name of `thistle list strategies`, or [your own](own.md#a-strategy) `module:factory`."""


class Attack(Open):
    """Which simulated clients attack, how and when; each attack defines more settings (thistle.attacks.registry)."""

    kind: str = "none"
    """What the malicious clients do: a name of `thistle list attacks`, or [your own](own.md#an-attack)
    `module:factory`."""
    fraction: Fraction = 0.0
    """The share of all clients that are malicious, drawn with the seed."""
    clients: str = ""
    """The ids of the malicious clients, such as `0,3,7-9`, instead of a share."""
    start: Positive = 1
    """The first round with attacks."""
    stop: Natural = 0
    """The last round with attacks; 0: the last of the run."""
    period: Natural = 0
    """Attackers attack for this many rounds, train honestly for as many, attack again, and so on; 0: always attack."""
    honest_first: Natural = 0
    """Each attacker trains honestly this many times first, to gain trust."""
    strength: NonNegative | Default = "default"
    """The attack's main parameter, see `thistle list attacks`; `default`: the attack's own default, which the run
    folder records."""
    omniscient: bool = False
    """Whether colluders know the honest clients' updates, not only each other's."""


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
