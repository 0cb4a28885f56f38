"""A strategy that is a list of steps, as a Flower `Strategy`: in Thistle's own loop and in anybody's Flower app."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thistle.experiments.errors import UserError
from thistle.experiments.randomness import numpy_rng
from thistle.protocol.answer import Answer
from thistle.protocol.layout import CONTROL, Layout, State, to_record, to_state, view
from thistle.protocol.training import AFTER, BEFORE, COUNTS, EXAMPLES, LOSS, RATE, ROUND, ask_for_factors
from thistle.protocol.verdict import Kind, Verdict
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate
from thistle.strategies.buffers import combine_buffers, take_reference
from thistle.strategies.memory import reputation
from thistle.strategies.options import Options
from thistle.strategies.registry import setting, with_settings
from thistle.strategies.rounds import LEARN, Progress, Round, Step, arrange, stage
from thistle.strategies.steps.aggregation import Aggregation
from thistle.strategies.steps.control_variates import control_records
from thistle.strategies.steps.learning import Loss, Objective, ServerData, ServerRound, check_shapes
from thistle.strategies.steps.mixing import understand_mixing

logger = logging.getLogger("flwr")
FLOWERS = FedAvg()
"""For the defaults of Flower's own."""
ROUNDS = "rounds-done"
"""In a pipeline's state, beside its memory."""
STRANGERS = 2**62
"""No client has this id or a higher one."""
NOT_FINITE = "its update is not finite"
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(kw_only=True, eq=False, repr=False)
class Pipeline(Options, FedAvg):
    """Samples clients, turns replies into updates, and lets each step have its say.

    The first ten arguments are those of Flower's FedAvg, and mean the same. `model`, `server_data` (tensors, or a
    DataLoader of them) and `loss` are for the steps that learn on data of the server's own; `lr` is the clients'
    learning rate where the train config has no "lr". A rule overrides `rule`, or `steps` where it is more than that.
    """

    fraction_train: float = 1.0
    fraction_evaluate: float = 1.0
    min_train_nodes: int = 2
    min_evaluate_nodes: int = 2
    min_available_nodes: int = 2
    weighted_by_key: str = EXAMPLES
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsFunction | None = None  # type: ignore[assignment]
    evaluate_metrics_aggr_fn: MetricsFunction | None = None  # type: ignore[assignment]

    model: nn.Module | None = None
    server_data: tuple[Tensor, Tensor] | Iterable[Any] | None = None
    loss: Loss = cross_entropy
    objective: Objective | None = None
    """What the server's learning minimises in each round instead of `loss`."""
    lr: float | None = None
    weight_decay: float = 0.0
    """Of the server's own learning."""

    takes_updates: ClassVar[bool] = True
    """In Thistle's own loop it gets the block of updates (see thistle.strategies.flower.Adapter)."""
    losses_required: ClassVar[bool] = False
    """Ranks can do without a client's word."""
    logged: ClassVar[frozenset[str]] = frozenset({LOSS})
    """The metrics of a reply that no step sees."""
    coordinatewise: ClassVar[bool] = False
    """Whether the rule works coordinate by coordinate."""
    mixes: ClassVar[bool] = False
    """Whether the rule takes `mixing` itself; otherwise it gets the mixed rows."""
    leaves_out: ClassVar[str] = ""
    """Why a client gets no weight at all, in words, where the rule selects clients; empty: it only weighs them."""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """The settings of a subclass are arguments of its constructor, with or without a decorator."""
        return super().__new__(with_settings(cls))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.train_metrics_aggr_fn = self.train_metrics_aggr_fn or FLOWERS.train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = self.evaluate_metrics_aggr_fn or FLOWERS.evaluate_metrics_aggr_fn
        self.plan: tuple[Step, ...] = understand_mixing(arrange(self.steps(), self.option_steps()))
        """All steps in their order: the rule's, and those of the options."""
        self.memory: dict[str, np.ndarray] = {}
        """All that a round leaves for the next; the checkpoint holds it."""
        self.verdicts: dict[int, Verdict] = {}
        """What the last round's steps said of the clients whose replies they saw."""
        self.seconds_learning = 0.0
        """What the last round's learning on server data took, which is no part of the defence."""
        self.layout: Layout | None = None
        """The model's arrays; known from the first round on, unless it is given earlier (`bind`)."""
        self.rounds_done = 0
        """In all: a model that is trained on by another `start` goes on where the last one ended."""
        self._started, self._rounds_before = False, 0
        self._connected = 0
        self._server: ServerData | None = None
        self._server_round: ServerRound | None = None
        self._wanted: tuple[str, ...] = ()

    # ---- what a rule is -------------------------------------------------------------------------------------------

    def steps(self) -> Sequence[Step | None]:
        """The rule's own steps, in its paper's order; None: that one is turned off."""
        name = self.name or type(self).__name__
        return [Aggregation(name, self.rule, self.coordinatewise, self.mixes, self.leaves_out)]

    def rule(self, updates: Tensor, weights: Tensor) -> Aggregate | Tensor:
        """From the updates, one per row, and the clients' shares to the aggregate, or just its vector."""
        raise NotImplementedError(f"{type(self).__name__} has neither a rule nor steps of its own")

    def weighs(self) -> bool:
        """Whether clients count by their number of examples."""
        return False

    # ---- before a round -------------------------------------------------------------------------------------------

    def bind(self, layout: Layout) -> None:
        """For models of this layout; refuses one that a step cannot work with."""
        if self.layout == layout:
            return
        for step in self.plan:
            check = getattr(step, "check", None)
            if check is not None:
                check(layout)
        self.layout = layout
        self._server = self._gather_server_data(layout)

    def _gather_server_data(self, layout: Layout) -> ServerData | None:
        if self.server_data is None:
            return None
        if self.model is None:
            raise UserError(f"server_data: {type(self).__name__} needs the network too, as model=…")
        return ServerData.of(
            self.model,
            layout,
            self.server_data,
            epochs=self.server_epochs,
            batch_size=self.server_batch_size,
            weight_decay=self.weight_decay,
            seed=self.seed,
            loss=self.loss,
            objective=self.objective,
        )

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **more: Any) -> Result:
        """As Flower's; where no round gave a model, the result holds the initial one.

        After `load_state_dict`, and in a second `start`, rounds are counted on from the last one that was done: what
        is random depends on their number, and clients are told it.
        """
        self._refuse(self.check_settings)
        self._started, self._rounds_before = True, self.rounds_done
        try:
            result = super().start(grid, initial_arrays, *args, **more)
        finally:
            self._started, self._rounds_before = False, 0
        result.arrays = result.arrays or initial_arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per sampled client; clients with the same request have the same content."""
        self.verdicts = {}
        if self.fraction_train == 0.0:
            return []
        self.rounds_done = server_round = server_round + self._rounds_before
        config[ROUND] = server_round
        config.update(self.terms())
        self.begin(server_round, arrays, config)
        chosen = self.choose_clients(server_round, grid)
        if self._started:
            self._refuse(self.check_count, len(chosen))
        contents = self._contents(arrays, config, chosen)
        return [
            Message(content, dst_node_id=client, message_type="train")
            for client, content in zip(chosen, contents, strict=True)
        ]

    def begin(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """A round from this model, with these settings for its clients."""
        if self.layout is None or [entry.name for entry in self.layout.entries] != list(arrays):
            self.bind(self._layout_of(arrays))
        self._require_server_data()
        self._lr = self._rate(config)
        self._sent = to_state(arrays)
        self._server_round = ServerRound(self._server, number, self._sent) if self._server else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg's."""
        return super().configure_evaluate(server_round + self._rounds_before, arrays, config, grid)

    def _layout_of(self, arrays: ArrayRecord) -> Layout:
        try:
            layout = Layout.of_record(arrays, self.model)
        except ValueError as error:
            raise UserError(f"{type(self).__name__}: {error}") from None
        if self.model is not None:
            check_shapes(self.model, layout)
        return layout

    def _refuse(self, check: Callable[..., None], *about: Any) -> None:
        """Let a check of the settings speak of them as arguments."""
        try:
            check(*about)
        except UserError as error:
            raise UserError(f"{type(self).__name__}: {str(error).removeprefix('strategy.')}") from None

    def _require_server_data(self) -> None:
        asking = self.server_data_for()
        if asking and self._server is None:
            how = f"{type(self).__name__}(server_data=(x, y), model=…)"
            raise UserError(f"{asking.removeprefix('strategy.')} needs server data: {how}")

    def _rate(self, config: ConfigRecord) -> float:
        """The clients' learning rate; NaN where nobody said it and no step needs it."""
        rate = config.get(RATE, self.lr)
        if isinstance(rate, int | float):
            return float(rate)
        if self.uses_rate():
            name = type(self).__name__
            raise UserError(f'{name} needs the clients\' learning rate: {name}(lr=…), or train_config with an "lr"')
        return math.nan

    def _contents(self, arrays: ArrayRecord, config: ConfigRecord, chosen: list[int]) -> list[RecordDict]:
        """The model with what each client is asked for: the same to all, or factors of each one's rank."""
        model, asked = self.arrayrecord_key, self.configrecord_key
        if self.ranks is None or not self.ranks.factors:
            content = RecordDict({model: arrays, asked: config})
            controls = control_records(self.memory, chosen)
            own = {client: RecordDict({**content, CONTROL: record}) for client, record in controls.items()}
            return [own.get(client, content) for client in chosen]
        wanted = [float(rank) for rank in self.ranks.of(self.memory, chosen)]
        made = {rank: RecordDict({model: arrays, asked: ask_for_factors(config, rank)}) for rank in set(wanted)}
        return [made[rank] for rank in wanted]

    def choose_clients(self, number: int, grid: Grid) -> list[int]:
        """Without replacement, by (seed, round) and reputation alone."""
        available = self._wait_for_nodes(grid)
        self._connected = len(available)
        count = max(int(len(available) * self.fraction_train), self.min_train_nodes)
        chances = reputation.chances(self.memory, available) if self.reputation else None
        rng = numpy_rng(self.seed, "sample", number)
        chosen = rng.choice(available, min(count, len(available)), replace=False, p=chances, shuffle=False)
        return sorted(int(client) for client in chosen)

    def _wait_for_nodes(self, grid: Grid) -> np.ndarray:
        """Those who are there, once there are enough."""
        least = max(self.min_available_nodes, self.min_train_nodes)
        while len(available := _as_array(grid.get_node_ids())) < least:
            logger.info("Waiting for nodes to connect: %d connected (minimum required: %d).", len(available), least)
            time.sleep(1)
        return available

    def fit(self, count: int) -> None:
        """Sample this many clients; it would wait for more than there are."""
        self.min_train_nodes = self.min_available_nodes = count

    def look_ahead(self) -> None:
        """While the clients train: what the last round's steps asked of the server's data at the model that is sent."""
        for wanted in self._wanted if self._server_round else ():
            getattr(self._server_round, wanted)()

    # ---- after a round --------------------------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As Flower calls it, with messages. Metrics: Flower's average over those that mattered, and the steps' own."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        answered = sorted(valid, key=lambda reply: reply.metadata.src_node_id)
        answers, updates, rejected = self._read(answered)
        if not answers or not self._are_enough(len(answers)):
            return None, None
        record, said = self.next_model(server_round + self._rounds_before, answers, updates)
        self.verdicts |= {client: Verdict(client, "rejected", reason=NOT_FINITE) for client in rejected}
        mattered = [reply.content for reply in answered if self.verdicts[reply.metadata.src_node_id].mattered]
        assert self.train_metrics_aggr_fn is not None
        average = self.train_metrics_aggr_fn(mattered or [reply.content for reply in answered], self.weighted_by_key)
        return record, MetricRecord({**average, **said})

    def _read(self, replies: Sequence[Message]) -> tuple[list[Answer], np.ndarray, list[int]]:
        """The replies, their updates as rows, and the nodes whose update is not finite: those are left out.

        That is the least that no rule can do without; `Guarded` checks much more.
        """
        if not replies:
            return [], np.empty((0, 0), np.float32), []
        assert self.layout is not None
        answers = [self._answer(reply) for reply in replies]
        updates = np.empty((len(answers), self.layout.size), np.float32)
        since = self.layout.vector(self._sent).numpy()
        lengths = [self.layout.write_change(a.arrays, since, row) for a, row in zip(answers, updates, strict=True)]
        finite = np.isfinite(lengths)
        if finite.all():
            return answers, updates, []
        rejected = [answer.client for answer, fine in zip(answers, finite, strict=True) if not fine]
        for node in rejected:
            logger.warning("Node %d rejected: %s", node, NOT_FINITE)
        self.penalise(rejected)
        return [a for a, fine in zip(answers, finite, strict=True) if fine], updates[finite], rejected

    def _are_enough(self, replies: int) -> bool:
        """Whether the rule can work with this many: nodes may fail, and then the model stays for a round."""
        try:
            self.check_count(replies)
        except UserError as error:
            logger.warning("The model is unchanged: %s", str(error).removeprefix("strategy."))
            return False
        return True

    def _answer(self, reply: Message) -> Answer:
        assert self.layout is not None
        (record,), (metrics,) = reply.content.array_records.values(), reply.content.metric_records.values()
        node = reply.metadata.src_node_id
        if record.keys() != {entry.name for entry in self.layout.entries}:
            raise ValueError(f"node {node}: its arrays do not match the model that was sent")
        arrays = {entry.name: view(record[entry.name]) for entry in self.layout.entries}
        for entry in self.layout.entries:
            if arrays[entry.name].shape != entry.shape:
                shape = arrays[entry.name].shape
                raise ValueError(f"node {node}: its array {entry.name} has the shape {shape}, not {entry.shape}")
        return Answer(node, dict(metrics), arrays)

    def next_model(self, number: int, answers: Sequence[Answer], block: np.ndarray) -> tuple[ArrayRecord, MetricRecord]:
        """x_{t+1} = x_t + what the steps make of the updates, of which the n×d block has a row for each answer."""
        assert self.layout is not None
        sent, updates = self._sent, torch.from_numpy(block)
        model = self.layout.vector(sent)
        round = self._round(number, answers, model)
        spread = aggregators.sample_variance(updates) if len(updates) else 0.0
        progress = Progress.begin(updates).measure(clients_heterogeneity=spread)
        self.seconds_learning = 0.0
        for step in self.plan:
            started = time.perf_counter()
            progress = step(round, progress)
            if not isinstance(progress, Progress):
                raise TypeError(f"a step should return a Progress, not {type(progress).__name__}")
            if stage(step) == LEARN:
                self.seconds_learning += time.perf_counter() - started
        self._wanted = self._server_round.asked if self._server_round else ()
        self._remember(round, progress, answers)
        after = model + progress.step
        record = to_record(self.layout.state(after, self._next_buffers(progress, answers, after)))
        return record, MetricRecord({name: float(value) for name, value in progress.metrics.items()})

    def try_out(self, number: int, updates: Tensor, ids: Sequence[int] | None = None) -> Progress:
        """What the steps but server learning would make of these updates, one per row; nothing is remembered.

        `ids`: whose they are, rising; by default clients that nobody has seen before. Each has one example.
        """
        round = self._trial_round(number, len(updates), ids)
        progress = Progress.begin(updates.clone())
        for step in self.plan:
            if stage(step) != LEARN:
                progress = step(round, progress)
        return progress

    def worst(self, number: int, honest: Tensor, copies: int, target: Tensor) -> list[Tensor]:
        """What its steps know in closed form of updates that harm and pass (see thistle.strategies.steps.filters)."""
        round = self._trial_round(number, len(honest))
        offers = [step.worst(round, honest, copies, target) for step in self.plan if hasattr(step, "worst")]
        return [vector for offer in offers for vector in offer]

    def _trial_round(self, number: int, count: int, ids: Sequence[int] | None = None) -> Round:
        assert self.layout is not None
        who = range(STRANGERS, STRANGERS + count) if ids is None else ids
        answers = [Answer(client, {self.weighted_by_key: 1}, {}) for client in who]
        return self._round(number, answers, self.layout.vector(self._sent))

    def server_gradient(self) -> Tensor | None:
        """g0 at the model that was sent; None: there are no server data."""
        return self._server_round.gradient() if self._server_round else None

    def _next_buffers(self, progress: Progress, answers: Sequence[Answer], after: Tensor) -> State:
        """Those of the clients that are heard, judged by what the server's own data give at the next model."""
        assert self.layout is not None
        if not self.layout.buffers:
            return {}
        reference = self._server_round.statistics(after) if self._server_round else {}
        heard = progress.heard().tolist()
        states = [self._buffers(answer) for answer, voter in zip(answers, heard, strict=True) if voter]
        combined = combine_buffers(self.layout, states, self._sent, reference)
        return take_reference(self.layout, combined, reference) if self.batch_norm == "server" else combined

    def _buffers(self, answer: Answer) -> State:
        assert self.layout is not None
        return {entry.name: torch.from_numpy(np.array(answer.arrays[entry.name])) for entry in self.layout.buffers}

    def _round(self, number: int, answers: Sequence[Answer], model: Tensor) -> Round:
        metrics = [answer.numbers for answer in answers]
        examples = torch.tensor([numbers[self.weighted_by_key] for numbers in metrics], dtype=torch.float64)
        prior = examples if self.weighs() else torch.ones_like(examples)
        asked = bool(answers) and all(COUNTS in numbers for numbers in metrics)
        ids = tuple(answer.client for answer in answers)
        return Round(
            number,
            ids,
            prior / prior.sum(),
            model,
            self._lr,
            self._server_round,
            self.memory,
            ranks=torch.from_numpy(self.ranks.of(self.memory, ids)) if self.ranks else None,
            examples=examples,
            class_counts=torch.tensor([numbers[COUNTS] for numbers in metrics]) if asked else None,
            layout=self.layout,
            connected=self._connected,
        )

    # ---- between rounds -------------------------------------------------------------------------------------------

    def _remember(self, round: Round, progress: Progress, answers: Sequence[Answer]) -> None:
        """Verdicts for the record; notes, ranks and reputation for the next rounds."""
        self.verdicts = _verdicts(round, progress)
        self.memory |= progress.notes
        gains = np.array([_gain(answer) for answer in answers])
        if self.ranks and self.ranks.step and not np.isnan(gains).all():  # other people's clients may never say
            self.memory |= self.ranks.after(self.memory, round.ids, gains)
        if self.reputation:
            accepted = [c for c, verdict in self.verdicts.items() if verdict.verdict == "accepted"]
            excluded = [c for c in round.ids if c not in set(accepted)]
            self.memory |= reputation.judged(self.memory, accepted, excluded)

    def penalise(self, clients: Iterable[int]) -> None:
        """Replies that the guard rejected cost reputation too."""
        if self.reputation:
            self.memory |= reputation.judged(self.memory, (), list(clients))

    def state_dict(self) -> dict[str, np.ndarray]:
        """All that the next rounds depend on, besides the model and the settings."""
        return {**self.memory, **({ROUNDS: np.array(self.rounds_done)} if self.rounds_done else {})}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what `state_dict` gave."""
        self.memory = {name: values for name, values in state.items() if name != ROUNDS}
        self.rounds_done = int(state.get(ROUNDS, 0))


@dataclass(kw_only=True, eq=False, repr=False)
class Weighted:
    """For rules that can weigh clients by their data size: class RFA(Weighted, Pipeline)."""

    weighted: bool = setting("whether clients weigh by their number of examples", default=False)

    def weighs(self) -> bool:
        """As the setting says."""
        return self.weighted


def _as_array(ids: Iterable[int]) -> np.ndarray:
    """A million ids of a range are made at once, not one by one."""
    return np.arange(ids.start, ids.stop) if isinstance(ids, range) else np.array(sorted(ids), dtype=np.uint64)


def _verdicts(round: Round, progress: Progress) -> dict[int, Verdict]:
    """What the steps said of each client."""
    values = (progress.scores, progress.thresholds, progress.weights, round.ranks)
    columns = [_column(one, len(round.ids)) for one in values]
    said: dict[int, tuple[Kind, str, str]]
    said = {row: ("filtered", step, progress.reasons.get(row, "")) for row, step in progress.dropped_by.items()}
    said |= {row: ("accepted", progress.weighed_by, reason) for row, reason in progress.faint.items()}
    verdicts = {}
    for row, (client, score, threshold, weight, rank) in enumerate(zip(round.ids, *columns, strict=True)):
        kind, step, reason = said.get(row, ("accepted", "", ""))
        verdicts[client] = Verdict(client, kind, step, score, threshold, weight, rank, reason=reason)
    return verdicts


def _column(values: Tensor | None, rows: int) -> Sequence[float | None]:
    """NaN says that there is no such number."""
    return [None] * rows if values is None else [None if math.isnan(one) else one for one in values.tolist()]


def _gain(answer: Answer) -> float:
    """p_i = F_i(x_t) − F_i(x_i), as the client reports it; NaN if it reports nothing."""
    before, after = answer.numbers.get(BEFORE, math.nan), answer.numbers.get(AFTER, math.nan)
    return float(before) - float(after)  # type: ignore[arg-type]
