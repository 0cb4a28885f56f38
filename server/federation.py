"""The round loop: one round is one reading of the picture in the design, top to bottom."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from safetensors.torch import save_file

from exchange.experiment import Experiment
from exchange.layout import Layout, record_bytes, sha256, to_record, to_state
from exchange.randomness import reseed_globals
from exchange.runfolder import RunFolder, write_json
from exchange.settings import learning_rate
from exchange.text import last_line
from exchange.verdict import Verdict
from server.casting import cast_aggregate
from server.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from server.detection import Truth
from server.environment import environment
from server.evaluation import Evaluation
from server.grid import CohortGrid
from server.guard import Expected, Guard
from server.recorder import Recorder
from strategies.build import make_strategy
from strategies.memory import recall, remind
from strategies.pipeline import Pipeline
from strategies.table import find
from tasks.models import build_model
from tasks.task import Task
from tasks.training import pick_device, to_tensors

logger = logging.getLogger("thistle")

MODEL, STRATEGY = "model/", "strategy/"


class Federation:
    """One experiment, from its first (or last checkpointed) round to its final model."""

    def __init__(self, experiment: Experiment, task: Task, folder: RunFolder, inner: Grid) -> None:
        self.experiment = experiment
        self.folder = folder
        device = pick_device(experiment.runtime.device)
        network = build_model(experiment.network, task.shape, task.classes, experiment.seed).to(device)
        self.layout = Layout.of(network)
        self.facts: dict[str, Any] = {"classes": list(task.dataset.classes), "shape": list(task.shape)}
        """What a node with data of its own must know of the task."""
        self.evaluation = Evaluation(experiment, network, *to_tensors(task.dataset.test, device))
        self.strategy: Strategy = make_strategy(experiment, task, self.layout)
        cap = experiment.client.max_examples
        self.guard = Guard(self.layout, task.classes, lambda client: min(cap, task.partition.size(client)))
        self.arrays = to_record(network.state_dict())
        self.grid = CohortGrid(inner, experiment.task.clients, experiment.runtime.workers, experiment.client.timeout)
        self.truth = Truth(experiment)
        self._failure_shown = False

    def run(self) -> None:
        """All rounds that are still to come, then the final files."""
        done = self._restore()
        recorder = Recorder(self.folder, done)
        self._greet()
        for number in range(done + 1, self.experiment.rounds + 1):
            line, verdicts = self._round(number)
            recorder.record(line, verdicts)
            self._save(number)
        self._finish(recorder)

    def _greet(self) -> None:
        """Every host is up before the first clock starts."""
        terms = getattr(self.strategy, "terms", {})
        hosts = self.grid.ping(RecordDict({"config": ConfigRecord({**self.facts, **terms})}))
        described = [{key: str(value) for key, value in host.config_records["host"].items()} for host in hosts]
        if len({str(host) for host in described}) > 1:
            logger.warning("hosts differ, so the same seed may give other bits: %s", described)
        write_json(self.folder.environment, environment(described[0]))
        self.grid.on_reply = self._show_first_failure
        self.folder.set_status("running")

    def _round(self, number: int) -> tuple[dict[str, Any], list[Verdict]]:
        """1 configure ▶ 2 train ▶ 3 guard ▶ 4 aggregate ▶ 5 evaluate."""
        started = time.perf_counter()
        client = self.experiment.client
        reseed_globals(self.experiment.seed, "server", number)
        rate = learning_rate(client, number, self.experiment.rounds)

        messages = self._configure(number, rate)
        replies = self.grid.send_and_receive(messages, timeout=client.timeout)
        asked = [message.metadata.dst_node_id for message in messages]
        group = messages[0].metadata.group_id
        inspection = self.guard.inspect(self.arrays, asked, replies, self._expected(), group)
        for stray in inspection.strays:
            logger.warning("round %d: %s", number, stray)
        if isinstance(self.strategy, Pipeline):
            self.strategy.penalise(v.client for v in inspection.verdicts if v.verdict == "rejected")
        up = record_bytes(reply.content.array_records["arrays"] for reply in inspection.accepted)
        line: dict[str, Any] = {
            "round": number,
            "lr": rate,
            "bytes_down": sum(record_bytes(message.content.array_records.values()) for message in messages),
            "bytes_up": up,
            **self._aggregate(number, inspection.accepted),
        }
        verdicts = self._final_verdicts(inspection.verdicts)
        counts = Counter(verdict.verdict for verdict in verdicts)
        line |= {kind: counts[kind] for kind in ("accepted", "filtered", "rejected", "failed")}
        line["detection"] = asdict(self.truth.score(number, verdicts))
        line["seconds_training"] = time.perf_counter() - started
        if self.evaluation.is_due(number):
            line |= self.evaluation.measure(self.arrays)
        line["seconds"] = time.perf_counter() - started
        return line, verdicts

    def _configure(self, number: int, rate: float) -> list[Message]:
        """Who trains, with what; each message lives as long as the round may."""
        losses = find(self.experiment.strategy.name).losses
        config = ConfigRecord({"lr": rate, "report-losses": losses, **self.facts})
        messages = list(self.strategy.configure_train(number, self.arrays, config, self.grid))
        for message in messages:
            message.metadata.group_id = str(number)
            message.metadata.ttl = self.experiment.client.timeout
        return messages

    def _expected(self) -> Expected:
        """All of them in every reply: Flower's strategies stop where two replies differ in their keys."""
        losses = {"loss-before", "loss-after"} if find(self.experiment.strategy.name).losses else set()
        metrics = frozenset({"num-examples", "loss", "seconds"} | losses)
        return Expected(metrics, metrics, class_counts=bool(self.experiment.strategy.class_aware))

    def _aggregate(self, number: int, replies: list[Message]) -> dict[str, Any]:
        """The next model, or the old one where there is nothing to learn from."""
        if len(replies) < self.experiment.client.min_replies:
            return {"kept": f"{len(replies)} replies, client.min-replies = {self.experiment.client.min_replies}"}
        losses = [float(reply.content.metric_records["metrics"].get("loss", 0.0)) for reply in replies]  # type: ignore[arg-type]
        try:
            aggregate, metrics = self.strategy.aggregate_train(number, replies)
        except Exception as error:
            reason = last_line(f"{type(error).__name__}: {error}")
            logger.warning("round %d: the strategy could not aggregate: %s", number, reason)
            return {"kept": f"aggregate.failed: {reason}"}
        self.arrays, problem = cast_aggregate(aggregate, self.arrays, self.layout)
        line: dict[str, Any] = {"train_loss": sum(losses) / len(losses)}
        if problem:
            logger.warning("round %d: the model stays: %s", number, problem)
            line["kept"] = problem
        own = {key: value for key, value in (metrics or {}).items() if isinstance(value, int | float)}
        return line | {key: value for key, value in own.items() if "." in key}

    def _final_verdicts(self, verdicts: list[Verdict]) -> list[Verdict]:
        """The guard's verdicts, with what the strategy's steps said of those it accepted."""
        said: dict[int, Verdict] = getattr(self.strategy, "verdicts", {})
        return [said.get(v.client, v) if v.verdict == "accepted" else v for v in verdicts]

    def _show_first_failure(self, reply: Message) -> None:
        """The user sees a client's error when it happens, not when the run has gone wrong."""
        if reply.has_error() and not self._failure_shown:
            self._failure_shown = True
            logger.warning("client %d failed: %s", reply.metadata.src_node_id, reply.error.reason)

    def _save(self, number: int) -> None:
        arrays, plain = recall(self.strategy)
        model = {MODEL + name: array.numpy() for name, array in self.arrays.items()}
        memory = {STRATEGY + name: array for name, array in arrays.items()}
        save_checkpoint(self.folder.checkpoints, Checkpoint(number, {**model, **memory}, {"strategy": plain}))

    def _restore(self) -> int:
        """Go on after the last whole checkpoint; returns its round, 0 for a new run."""
        checkpoint = load_checkpoint(self.folder.checkpoints) if self.experiment.run.resume else None
        if checkpoint is None:
            return 0
        state = _below(checkpoint.arrays, MODEL)
        self.arrays = to_record({e.name: torch.from_numpy(state[e.name]) for e in self.layout.entries})
        remind(self.strategy, _below(checkpoint.arrays, STRATEGY), checkpoint.plain["strategy"])
        logger.info("continuing after round %d", checkpoint.round)
        return checkpoint.round

    def _finish(self, recorder: Recorder) -> None:
        state = to_state(self.arrays)
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, self.folder.model)
        summary = recorder.summary(self.experiment.evaluate.window)
        write_json(self.folder.summary, {"name": self.folder.path.name, **summary, "model_sha256": sha256(state)})
        write_json(self.folder.truth, self.truth.document())
        self.folder.set_status("finished")


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
