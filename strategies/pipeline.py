"""A strategy that is a list of steps, as a Flower `Strategy`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from exchange.layout import Layout, State, to_record, to_state
from exchange.randomness import numpy_rng
from exchange.verdict import Verdict
from strategies.buffers import combine_buffers
from strategies.rounds import Progress, Round, Step


class Pipeline(Strategy):
    """Samples uniformly, turns replies into updates, and lets each step have its say."""

    def __init__(self, steps: Sequence[Step], layout: Layout, per_round: int, seed: int, weighted: bool) -> None:
        self.steps = tuple(steps)
        self.layout = layout
        self.per_round = per_round
        self.seed = seed
        self.weighted = weighted
        self.verdicts: dict[int, Verdict] = {}
        """What the last round's steps said of its clients (those not named were accepted)."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a sampled client, all with the same content."""
        config["server-round"] = server_round
        self._sent, self._lr = arrays, float(config["lr"])  # type: ignore[arg-type]
        content = RecordDict({"arrays": arrays, "config": config})
        chosen = self.sample(server_round, list(grid.get_node_ids()))
        return [Message(content, dst_node_id=client, message_type="train") for client in chosen]

    def sample(self, number: int, available: list[int]) -> list[int]:
        """Uniform, without replacement, by (seed, round) alone."""
        count = min(self.per_round, len(available))
        rng = numpy_rng(self.seed, "sample", number)
        return sorted(int(i) for i in rng.choice(available, size=count, replace=False, shuffle=False))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """x_{t+1} = x_t + what the steps make of the updates."""
        answered = sorted((reply for reply in replies if reply.has_content()), key=lambda m: m.metadata.src_node_id)
        sent = to_state(self._sent)
        model = self.layout.vector(sent)
        states, round = self._round(server_round, answered, model)
        progress = Progress.begin(round)
        for step in self.steps:
            progress = step(round, progress)
        self.verdicts = progress.verdicts
        buffers = combine_buffers(self.layout, states, progress.weights, sent)
        return to_record(self.layout.state(model + progress.step, buffers)), MetricRecord(dict(progress.metrics))

    def _round(self, number: int, replies: list[Message], model: Tensor) -> tuple[list[State], Round]:
        updates = torch.empty(len(replies), self.layout.size)
        states: list[State] = []
        for row, reply in zip(updates, replies, strict=True):
            state = to_state(reply.content.array_records["arrays"])
            self.layout.vector(state, out=row).sub_(model)
            states.append({entry.name: state[entry.name] for entry in self.layout.buffers})
        sizes = [reply.content.metric_records["metrics"]["num-examples"] if self.weighted else 1 for reply in replies]
        prior = torch.tensor(sizes, dtype=torch.float64)
        ids = tuple(reply.metadata.src_node_id for reply in replies)
        return states, Round(number, ids, updates, prior / prior.sum(), model, self._lr)

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
