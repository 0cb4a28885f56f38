"""What all our pipelines can do besides their rule: each option adds a step, or changes what clients are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import AboveZero, Fraction, Natural, NonNegative, Positive, Value
from thistle.protocol.training import PROXIMAL, REPORT_LOSSES
from thistle.strategies.memory.ranks import Ranks
from thistle.strategies.registry import Named, setting
from thistle.strategies.rounds import Step
from thistle.strategies.steps.change import Clip, ServerRate
from thistle.strategies.steps.control_variates import ControlVariates
from thistle.strategies.steps.filters import AngleFilter, LossFilter, ZenoFilter, part_of
from thistle.strategies.steps.learning import ServerLearning
from thistle.strategies.steps.limits import AdaptiveClipping
from thistle.strategies.steps.lowrank import LowRank
from thistle.strategies.steps.mixing import Bucketing, NearestNeighbourMixing
from thistle.strategies.steps.share import MaliciousShare

Cosine = Annotated[float, Field(ge=-1.0, le=1.0)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Rank = Annotated[float, Field(gt=0.0, le=1.0)]
HONEST_MAJORITY = {
    "nnm": "nearest-neighbour mixing",
    "arc": "adaptive clipping",
    "arc+nnm": "nearest-neighbour mixing",
}
"""The values of strategy.pre for which fewer than half of the replies may be malicious."""


@dataclass(kw_only=True, eq=False, repr=False)
class Options(Named):
    """The settings that all pipelines share."""

    filter: Literal["none", "angle", "loss", "zeno"] = setting(
        "which updates are kept, judged by the gradient on the server's data", default="none"
    )
    angle: Cosine = setting("angle filter: the least cosine with the server's descent direction", default=0.0)
    rho: NonNegative = setting(
        "loss and Zeno filter: the weight of an update's squared length, subtracted from its score", default=0.1
    )
    theta: Share | Literal["auto"] = setting(
        "loss filter: the share of replies that is dropped, lowest scores first; "
        "`auto`: as many as the scores of all rounds so far suggest",
        default=0.5,
    )
    epsilon: NonNegative = setting(
        "Zeno filter: how far below zero a score may be, "
        "in units of the learning rate times the gradient's squared length",
        default=0.1,
    )
    pre: Literal["none", "nnm", "bucketing", "arc", "arc+nnm"] = setting(
        "what is done to the updates before aggregation: nearest-neighbour mixing, means of random pairs (mixed "
        "rows weigh the same), adaptive clipping of the longest (Allouah et al. 2025), or clipping and then mixing",
        default="none",
    )
    malicious: Natural = setting(
        "f, the number of malicious replies per round that nearest-neighbour mixing and adaptive clipping withstand",
        default=1,
    )
    server_lr: AboveZero = setting("the factor by which the aggregate is multiplied", default=1.0)
    tau: NonNegative = setting(
        "the aggregate and the server's learning step are clipped to this length; 0: no clipping", default=0.0
    )
    gamma: NonNegative = setting("server learning: its learning rate in units of the clients'; 0: none", default=0.0)
    gamma_schedule: Literal["constant", "falling", "late"] = setting(
        "whether γ stays constant, falls to 0 over the first `gamma-rounds`, or is 0 until they are over",
        default="constant",
    )
    gamma_rounds: Positive = setting("the rounds of `gamma-schedule`", default=15)
    server_epochs: Positive = setting("passes over the server's data in its learning step", default=2)
    server_batch_size: Positive = setting("images per batch of that step", default=180)
    server_objective: Literal["clients", "standard"] = setting(
        "what the server minimises on its own data: the clients' objective, adversarial and calibrated if theirs is, "
        "or the plain cross-entropy",
        default="clients",
    )
    reputation: bool = setting("whether clients that were filtered or rejected are sampled less often", default=False)
    proximal_mu: NonNegative = setting("strength of the clients' proximal term (FedProx); 0: none", default=0.0)
    exchange: Literal["full", "factors"] = setting(
        "whether clients send their models, or the truncated singular factors of their updates", default="full"
    )
    rank: Rank = setting("the part of each layer's full rank to which updates are cut, at the start", default=1.0)
    rank_step: Fraction = setting(
        "by how much a client's rank rises or falls after a round; 0: ranks stay", default=0.0
    )
    rank_high: Fraction = setting(
        "it rises if training lowered the client's own loss by more than this quantile of the round", default=0.75
    )
    rank_low: Fraction = setting(
        "it falls if training lowered it by less than this quantile, or if the client does not report its loss",
        default=0.25,
    )
    control_variates: bool = setting(
        "SCAFFOLD's control variates; the clients' SGD must have no momentum", default=False
    )
    batch_norm: Literal["clients", "server"] = setting(
        "whose batch-norm statistics the next model has: [combined](security.md#batch-norm-statistics) "
        "from the clients', or measured again on the server's data after each round",
        default="clients",
    )

    # What is known of the clients, not a matter of taste:
    seed: int = 0
    tell: Mapping[str, Value] = field(default_factory=dict)
    """What else clients are told with every request."""
    num_clients: int = 0
    """Clients in all, for SCAFFOLD's average; 0: as many as are connected."""
    local_epochs: int = 1
    local_batch_size: int = 32
    """How the clients train, from which SCAFFOLD takes their number of steps."""
    prior_delta: float = 1e-3
    """What a class weighs, in class-aware heads, of which a client has no example."""
    clients_factor: bool = False
    """Whether clients can send factors, as Thistle's own do; otherwise the server cuts what they send."""

    mixable: ClassVar[bool] = True
    """Whether the rule may see mixtures of updates (`pre`)."""
    least_updates_by: ClassVar[str] = "malicious"
    """The setting that says how many updates the rule needs."""

    @property
    def by_factors(self) -> bool:
        """Whether the exchange is by factors, where clients can."""
        return self.exchange == "factors"

    @cached_property
    def factors(self) -> bool:
        """Whether clients are asked for factors."""
        return self.by_factors and self.clients_factor

    @cached_property
    def ranks(self) -> Ranks | None:
        """To which rank updates are cut; None: they stay as they are."""
        if self.rank == 1 and not self.rank_step and not self.by_factors:
            return None
        return Ranks(self.rank, self.rank_step, self.rank_high, self.rank_low, self.factors)

    @property
    def report_losses(self) -> bool:
        """Whether clients are asked for their loss before and after training."""
        return self.needs_losses or self.rank_step > 0

    @property
    def mixing(self) -> bool:
        """Whether the rule sees mixtures instead of each client's own update."""
        return self.pre not in ("none", "arc")

    @property
    def limits_length(self) -> bool:
        """Whether a single update cannot be longer than another one, so that a mean of them is not carried away."""
        return self.filter == "zeno" or (self.pre.startswith("arc") and self.malicious > 0)

    def terms(self) -> dict[str, Value]:
        """What clients are told besides the model; a client that does not know a key may ignore it."""
        told = dict(self.tell)
        if self.report_losses:
            told[REPORT_LOSSES] = True
        if self.proximal_mu:
            told[PROXIMAL] = self.proximal_mu
        return told

    def uses_rate(self) -> bool:
        """Whether the server must know the clients' learning rate."""
        return bool(self.server_learning().gamma) or self.control_variates or self.filter == "zeno"

    def server_learning(self) -> ServerLearning:
        """As the settings have it."""
        return ServerLearning(self.gamma, self.tau, self.gamma_schedule, self.gamma_rounds)

    def option_steps(self) -> list[Step]:
        """A step for every option that was chosen."""
        filters: dict[str, Step] = {
            "angle": AngleFilter(self.angle),
            "loss": LossFilter(self.rho, MaliciousShare() if self.theta == "auto" else self.theta),
            "zeno": ZenoFilter(self.rho, self.epsilon),
        }
        nnm, arc = NearestNeighbourMixing(self.malicious), AdaptiveClipping(self.malicious)
        pre: dict[str, list[Step]] = {
            "none": [],
            "nnm": [nnm],
            "bucketing": [Bucketing(self.seed)],
            "arc": [arc],
            "arc+nnm": [arc, nnm],
        }
        control = ControlVariates(self.num_clients, self.local_epochs, self.local_batch_size)
        return [
            *([LowRank(self.factors)] if self.ranks else []),
            *([filters[self.filter]] if self.filter != "none" else []),
            *pre[self.pre],
            *([control] if self.control_variates else []),
            ServerRate(self.server_lr),
            Clip(self.tau),
            self.server_learning(),
        ]

    def server_data_for(self) -> str:
        """The first setting that asks for data at the server."""
        if self.filter != "none":
            return f"strategy.filter = {self.filter}"
        if self.gamma:
            return f"strategy.gamma = {self.gamma:g}"
        return "strategy.batch-norm = server" if self.batch_norm == "server" else ""

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot work together, and not in this experiment."""
        super().check(experiment)
        self.check_settings()
        self.check_count(experiment.client.per_round)
        if self.control_variates and experiment.client.momentum:
            raise UserError(
                f"client.momentum = {experiment.client.momentum:g}: SCAFFOLD's control variates are defined for plain "
                "SGD; use 0.0"
            )

    def check_count(self, replies: int) -> None:
        """Refuse fewer replies per round than the rule needs."""
        n, f, name = self._rows(replies), self.malicious, self.name or type(self).__name__
        least, key = self.least_updates(), self.least_updates_by
        if n < least:
            value = getattr(self, key)
            raise UserError(f"strategy.{key} = {value}: {name} needs at least {least} updates per round, but gets {n}")
        if self.pre in HONEST_MAJORITY and 2 * f >= n:
            step = HONEST_MAJORITY[self.pre]
            raise UserError(f"strategy.malicious = {f}: {step} needs more than {2 * f} updates, not {n}")

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """What θ drops, where it is a number."""
        by_share = self.filter == "loss" and self.theta not in ("auto", 0.0)
        return self._dropped(replies), f"strategy.theta = {self.theta}" if by_share else ""

    def check_settings(self) -> None:
        """Refuse what cannot work together anywhere."""
        if self.mixing and not self.mixable:
            raise UserError(f"strategy.pre = {self.pre}: {self.name} looks at each client's own update; use none")
        if self.rank_low > self.rank_high:
            raise UserError(
                f"strategy.rank-low = {self.rank_low:g}: should not be above strategy.rank-high = {self.rank_high:g}"
            )
        if self.control_variates:
            self._check_control_variates()

    def _check_control_variates(self) -> None:
        """What SCAFFOLD's formulas take for granted."""
        as_trained = "SCAFFOLD's control variates need the updates as they were trained"
        if self.filter == "zeno":
            raise UserError(f"strategy.filter = zeno: {as_trained}; use strategy.control-variates = false")
        if self.pre.startswith("arc"):
            raise UserError(f"strategy.pre = {self.pre}: {as_trained}, not clipped")
        if self.ranks:
            key = "exchange" if self.by_factors else "rank"
            raise UserError(f"strategy.{key} = {getattr(self, key)}: {as_trained}, not cut to a rank")

    def _rows(self, per_round: int) -> int:
        """How many rows the rule gets, as far as the settings tell."""
        left = per_round - self._dropped(per_round)
        return (left + 1) // 2 if self.pre == "bucketing" else left

    def _dropped(self, replies: int) -> int:
        return part_of(self.theta, replies) if self.filter == "loss" and self.theta != "auto" else 0
