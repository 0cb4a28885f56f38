"""Computes a run's models again from its kept replies: guard, clipping and rule, without the server's round loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from thistle.attacks.training.loss import server_loss
from thistle.audit.reader import Line, Run
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import use_code
from thistle.experiments.randomness import reseed_globals
from thistle.experiments.settings import learning_rate, parse_ids
from thistle.flower_compat.messages import identify
from thistle.protocol.layout import Layout, sha256, to_record, to_state
from thistle.protocol.records import config_of
from thistle.protocol.training import ALWAYS, LOSSES, RATE, REPORT_CLASSES, REPORT_LOSSES, asked_rank, task_facts
from thistle.server.guard.casting import cast_aggregate
from thistle.server.guard.clipping import Clipping
from thistle.server.guard.inspection import Expected, Guard
from thistle.server.transport.memories import Memories
from thistle.server.transport.reply import Reply
from thistle.strategies.build import make_strategy, needs_server_data
from thistle.tasks.models import build_model
from thistle.tasks.task import prepare_task

KINDS: dict[str, Any] = {"metrics": MetricRecord, "config": ConfigRecord}


class Replay:
    """A run, from its first model on."""

    def __init__(self, run: Run, folder: Path) -> None:
        torch.set_num_threads(1)
        identify()
        use_code(folder / "code")
        self.run, self.folder = run, folder
        self.experiment = experiment = Experiment.of(run.start["experiment"])
        self.task = prepare_task(experiment.task, experiment.seed, needs_server_data(experiment))
        network = build_model(experiment.network, self.task.shape, self.task.classes, experiment.seed)
        self.layout, self.arrays = Layout.of(network), to_record(network.state_dict())
        key = folder / "noise.key"  # of a private run on real nodes: its noise and its sampling
        secret = (lambda: int(key.read_text())) if key.is_file() else None
        self.strategy = make_strategy(experiment, self.task, self.layout, server_loss(experiment, self.task), secret)
        self.blocks, clip = self.strategy.takes_updates, experiment.client.clip
        self.clipping = None if isinstance(clip, str) else Clipping(clip, self.layout, models=not self.blocks)
        self.memories = None if run.start["deployed"] else Memories(experiment)

    def problems(self) -> Iterator[str]:
        """The first round that does not come out as the log says."""
        for number, said in self.run.rounds.items():
            verdicts = self._round(number, said)
            if verdicts != {one["client"]: one["verdict"] for one in said["verdicts"]}:
                yield f"round {number}: its replies give other verdicts"
            if sha256(to_state(self.arrays)) != said["model_sha256"]:
                yield f"round {number}: its replies give another model: the rule, the data or the machine differs"
                return

    def _round(self, number: int, said: Line) -> dict[int, str]:
        client, strategy, task = self.experiment.client, self.strategy, self.task
        ids = {key: parse_ids(key, said[key], self.experiment.task.clients) for key in ("available", "own_data")}
        reseed_globals(self.experiment.seed, "server", number)
        strategy.fit(min(client.per_round, len(ids["available"])))
        rate = learning_rate(client, number, self.experiment.rounds)
        facts = task_facts(task.dataset.classes, task.shape)
        config = ConfigRecord({RATE: rate, REPORT_LOSSES: strategy.report_losses, **facts})
        there: Any = SimpleNamespace(get_node_ids=lambda: ids["available"])
        enough = ids["available"] and strategy.configure_train(number, self.arrays, config, there)
        asked = {message.metadata.dst_node_id: asked_rank(config_of(message)) for message in enough or ()}
        replies: Iterator[Reply] = (self._reply(*reply) for reply in said["replies"])
        own, most = set(ids["own_data"]), client.max_examples
        guard = Guard(
            self.layout,
            task.classes,
            lambda one: most if one in own else min(most, task.partition.size(one)),
            keeps_updates=self.blocks or self.clipping is not None,
            keeps_models=not self.blocks,
        )
        losses = LOSSES if strategy.report_losses else frozenset[str]()
        required = ALWAYS | losses if strategy.losses_required else ALWAYS
        expected = Expected(ALWAYS | losses, required, strategy.logged, REPORT_CLASSES in strategy.terms())
        ranks = {one: rank for one, rank in asked.items() if rank is not None}
        replies = self.memories.take(replies) if self.memories else replies
        found = guard.inspect(self.arrays, list(asked), replies, expected, str(number), ranks)
        strategy.penalise([one.client for one in found.verdicts if one.verdict == "rejected"])
        if self.clipping:
            self.clipping.apply(found, self.arrays)
        if len(found.answers) >= client.min_replies:
            try:
                aggregate, _ = strategy.next_model(number, found.answers, found.updates)
            except Exception:  # the server, too, keeps its model where the rule fails
                aggregate = None
            self.arrays, _ = cast_aggregate(aggregate, self.arrays, self.layout)
        last = strategy.verdicts
        return {
            v.client: last.get(v.client, v).verdict if v.verdict == "accepted" else v.verdict for v in found.verdicts
        }

    def _reply(self, client: int, group: str, digest: str, failure: str) -> Reply:
        path = self.folder / "replies" / f"{digest}.reply"
        return Reply(client, group, read_records(path.read_bytes()) if digest else None, failure)


def read_records(packed: bytes) -> dict[str, Any]:
    """A line of JSON that says what there is, and the arrays' bytes."""
    start = packed.index(b"\n") + 1
    records: dict[str, Any] = {}
    for name, (kind, content) in json.loads(packed[:start]).items():
        if kind in KINDS:
            records[name] = KINDS[kind](content)
        elif kind == "arrays":
            records[name] = ArrayRecord()
            for key, dtype, shape, stype, size in content:
                records[name][key] = Array(dtype, tuple(shape), stype, packed[start : start + size])
                start += size
    return records
