"""A strategy that is a list of steps, as a Flower `Strategy`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Value
from thistle.protocol.answer import Answer
from thistle.protocol.factors import ask_for_factors
from thistle.protocol.layout import CONTROL, Layout, State, to_record, to_state, view
from thistle.protocol.records import arrays_of, metrics_of
from thistle.protocol.verdict import Verdict
from thistle.strategies import aggregators, reputation
from thistle.strategies.buffers import combine_buffers, take_reference
from thistle.strategies.learning import ServerData, ServerRound
from thistle.strategies.ranks import Ranks
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.scaffold import control_records


class Pipeline(Strategy):
    """Samples clients, turns replies into updates, and lets each step have its say."""

    def __init__(
        self,
        steps: Sequence[Step],
        layout: Layout,
        server: ServerData | None,
        *,
        per_round: int,
        seed: int,
        weighted: bool,
        reputed: bool,
        ranks: Ranks | None = None,
        terms: Mapping[str, Value] | None = None,
        server_statistics: bool = False,
    ) -> None:
        """`server_statistics`: batch-norm statistics are those of the server's data."""
        self.steps = tuple(steps)
        self.layout, self.server = layout, server
        self.per_round, self.seed, self.weighted = per_round, seed, weighted
        self.ranks, self.reputed, self.server_statistics = ranks, reputed, server_statistics
        self.memory: dict[str, np.ndarray] = {}
        """All that a round leaves for the next; the checkpoint holds it."""
        self._wants_gradient = False
        self.terms = dict(terms or {})
        """What clients are told beside the model: of the strategy's wishes, and of adversarial training."""
        self.verdicts: dict[int, Verdict] = {}
        """What the last round's steps said of the clients whose replies they saw."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a sampled client; those who are asked for the same have the same content."""
        config["server-round"] = server_round
        config.update(self.terms)
        self.verdicts = {}
        self._lr = float(config["lr"])  # type: ignore[arg-type]
        self._sent = to_state(arrays)
        self._server_round = ServerRound(self.server, server_round, self._sent) if self.server else None
        chosen = self._sample(server_round, _as_array(grid.get_node_ids()))
        contents = self._contents(arrays, config, chosen)
        return [
            Message(content, dst_node_id=client, message_type="train")
            for client, content in zip(chosen, contents, strict=True)
        ]

    def _contents(self, arrays: ArrayRecord, config: ConfigRecord, chosen: list[int]) -> list[RecordDict]:
        """The model with what each client is asked for: the same to all, or factors of each one's rank."""
        if self.ranks is None or not self.ranks.factors:
            content = RecordDict({"arrays": arrays, "config": config})
            controls = control_records(self.memory, chosen)
            own = {client: RecordDict({**content, CONTROL: record}) for client, record in controls.items()}
            return [own.get(client, content) for client in chosen]
        wanted = [float(rank) for rank in self.ranks.of(self.memory, chosen)]
        made = {rank: RecordDict({"arrays": arrays, "config": ask_for_factors(config, rank)}) for rank in set(wanted)}
        return [made[rank] for rank in wanted]

    def look_ahead(self) -> None:
        """While the clients train: g0 at the model that they got, if the last round's steps asked for it."""
        if self._wants_gradient and self._server_round:
            self._server_round.gradient()

    def _sample(self, number: int, available: np.ndarray) -> list[int]:
        """Without replacement, by (seed, round) and reputation alone."""
        chances = reputation.chances(self.memory, available) if self.reputed else None
        count = min(self.per_round, len(available))
        rng = numpy_rng(self.seed, "sample", number)
        return sorted(int(i) for i in rng.choice(available, count, replace=False, p=chances, shuffle=False))

    def penalise(self, clients: Iterable[int]) -> None:
        """Replies that the guard rejected cost reputation too."""
        if self.reputed:
            self.memory |= reputation.judged(self.memory, (), list(clients))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As Flower calls it, with messages."""
        answered = sorted((reply for reply in replies if reply.has_content()), key=lambda m: m.metadata.src_node_id)
        answers = [self._answer(reply) for reply in answered]
        updates = np.empty((len(answers), self.layout.size), np.float32)
        since = self.layout.vector(self._sent).numpy()
        for row, answer in zip(updates, answers, strict=True):
            self.layout.write_change(answer.arrays, since, row)
        return self.aggregate(server_round, answers, updates)

    def aggregate(self, number: int, answers: Sequence[Answer], block: np.ndarray) -> tuple[ArrayRecord, MetricRecord]:
        """x_{t+1} = x_t + what the steps make of the updates, of which the n×d block has a row for each answer."""
        sent, updates = self._sent, torch.from_numpy(block)
        model = self.layout.vector(sent)
        round = self._round(number, answers, model)
        spread = aggregators.sample_variance(updates) if len(updates) else 0.0
        progress = Progress.begin(updates).measure(clients_heterogeneity=spread)
        for step in self.steps:
            progress = step(round, progress)
            if not isinstance(progress, Progress):
                raise TypeError(f"a step should return a Progress, not {type(progress).__name__}")
        self._wants_gradient = bool(self._server_round and self._server_round.asked)
        self._remember(round, progress, answers)
        after = model + progress.step
        record = to_record(self.layout.state(after, self._next_buffers(progress, answers, after)))
        return record, MetricRecord({name: float(value) for name, value in progress.metrics.items()})

    def _next_buffers(self, progress: Progress, answers: Sequence[Answer], after: Tensor) -> State:
        """Those of the clients that are heard, judged by what the server's own data give at the next model."""
        if not self.layout.buffers:
            return {}
        reference = self._server_round.statistics(after) if self._server_round else {}
        heard = progress.heard().tolist()
        states = [self._buffers(answer) for answer, voter in zip(answers, heard, strict=True) if voter]
        combined = combine_buffers(self.layout, states, self._sent, reference)
        return take_reference(self.layout, combined, reference) if self.server_statistics else combined

    def _answer(self, reply: Message) -> Answer:
        record = arrays_of(reply)
        arrays = {entry.name: view(record[entry.name]) for entry in self.layout.entries}
        return Answer(reply.metadata.src_node_id, dict(metrics_of(reply)), arrays)

    def _buffers(self, answer: Answer) -> State:
        return {entry.name: torch.from_numpy(np.array(answer.arrays[entry.name])) for entry in self.layout.buffers}

    def _round(self, number: int, answers: Sequence[Answer], model: Tensor) -> Round:
        metrics = [answer.numbers for answer in answers]
        examples = torch.tensor([numbers["num-examples"] for numbers in metrics], dtype=torch.float64)
        prior = examples if self.weighted else torch.ones_like(examples)
        asked = bool(answers) and all("class-counts" in numbers for numbers in metrics)
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
            class_counts=torch.tensor([numbers["class-counts"] for numbers in metrics]) if asked else None,
        )

    def _remember(self, round: Round, progress: Progress, answers: Sequence[Answer]) -> None:
        """Verdicts for the record; notes, ranks and reputation for the next rounds."""
        self.verdicts = _verdicts(round, progress)
        self.memory |= progress.notes
        if self.ranks and self.ranks.step:
            gains = np.array([_gain(answer) for answer in answers])
            self.memory |= self.ranks.after(self.memory, round.ids, gains)
        if self.reputed:
            accepted = [c for c, verdict in self.verdicts.items() if verdict.verdict == "accepted"]
            excluded = [c for c in round.ids if c not in set(accepted)]
            self.memory |= reputation.judged(self.memory, accepted, excluded)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the server evaluates on its own test set."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def summary(self) -> None:
        """The run folder holds it all."""


def _as_array(ids: Iterable[int]) -> np.ndarray:
    """A million ids of a range are made at once, not one by one."""
    return np.arange(ids.start, ids.stop) if isinstance(ids, range) else np.array(sorted(ids), dtype=np.uint64)


def _verdicts(round: Round, progress: Progress) -> dict[int, Verdict]:
    """What the steps said of each client."""
    columns = [_column(values, len(round.ids)) for values in (progress.scores, progress.weights, round.ranks)]
    verdicts = {}
    for row, (client, score, weight, rank) in enumerate(zip(round.ids, *columns, strict=True)):
        step = progress.dropped_by.get(row, "")
        known = None if score is None or math.isnan(score) else score
        verdicts[client] = Verdict(client, "filtered" if step else "accepted", step, known, weight, rank)
    return verdicts


def _column(values: Tensor | None, rows: int) -> Sequence[float | None]:
    return [None] * rows if values is None else values.tolist()


def _gain(answer: Answer) -> float:
    """p_i = F_i(x_t) − F_i(x_i), by the client's own word; NaN where it says nothing."""
    before, after = answer.numbers.get("loss-before", math.nan), answer.numbers.get("loss-after", math.nan)
    return float(before) - float(after)  # type: ignore[arg-type]
