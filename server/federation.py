"""The round loop: one round is one reading of the picture in the design, top to bottom."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from thistle.attacks.training.loss import server_loss
from thistle.experiments.errors import RunFailed
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import reseed_globals
from thistle.experiments.runfolder import RunFolder, read_json, read_lines, write_json
from thistle.experiments.settings import learning_rate
from thistle.protocol.announce import announce
from thistle.protocol.layout import Layout, record_bytes, to_record, view
from thistle.protocol.text import last_line
from thistle.protocol.training import ALWAYS, LOSS, LOSSES, RATE, REPORT_CLASSES, REPORT_LOSSES, task_facts
from thistle.protocol.verdict import Verdict
from thistle.server.client_tests import ClientTests
from thistle.server.evaluation import Evaluation
from thistle.server.guard.casting import cast_aggregate
from thistle.server.guard.clipping import Clipping
from thistle.server.guard.inspection import Expected, Guard, Inspection
from thistle.server.open_round import OpenRound
from thistle.server.recording.audit import Audit
from thistle.server.recording.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from thistle.server.recording.detection import Truth
from thistle.server.recording.environment import environment
from thistle.server.recording.finish import write_results
from thistle.server.recording.recorder import Recorder
from thistle.server.recording.sites import outcomes
from thistle.server.sites import Sites
from thistle.server.stopping import in_rounds, is_lost, is_spent, why_ended, why_lost
from thistle.server.transport.dispatch import MESSAGE
from thistle.server.transport.grid import CohortGrid
from thistle.server.transport.hosts import Hosts, read_bindings
from thistle.server.transport.memories import Memories
from thistle.server.transport.remote import STOPPED
from thistle.server.transport.reply import Reply
from thistle.server.transport.requests import array_bytes, ranks_asked
from thistle.strategies.accounting import local as local_privacy
from thistle.strategies.build import make_strategy
from thistle.tasks.models import build_model
from thistle.tasks.task import Task
from thistle.tasks.training import pick_device, to_tensors

logger = logging.getLogger("thistle")

MODEL, STRATEGY, CLIPPING, ATTACKERS = "model/", "strategy/", "clipping/", "attackers/"
SAME = ("torch", "machine", "device")
"""What hosts must have in common to compute the same bits."""


class Federation:
    """One experiment, from its first (or last checkpointed) round to its final model."""

    def __init__(
        self, experiment: Experiment, task: Task, folder: RunFolder, inner: Grid, deployed: bool = False
    ) -> None:
        """`deployed`: the hosts are real nodes, of which nobody here knows which ones are malicious."""
        self.experiment = experiment
        self.folder, self.deployed = folder, deployed
        device = pick_device(experiment.runtime.device)
        network = build_model(experiment.network, task.shape, task.classes, experiment.seed).to(device)
        self.layout = Layout.of(network)
        self.facts = task_facts(task.dataset.classes, task.shape, task.dataset.scheme)
        """What a node with its own data must know about the task."""
        self.truth = None if deployed else Truth(experiment)
        tests = ClientTests.draw(task, self.truth.malicious, experiment.seed) if self.truth else None
        test = task.dataset.test
        self.evaluation = Evaluation(
            experiment, network, *to_tensors(test, device), task.classes, bounds=test.bounds, client_tests=tests
        )
        secret = folder.secret if deployed else None
        self.strategy = make_strategy(experiment, task, self.layout, server_loss(experiment, task), secret)
        self.arrays = to_record(network.state_dict())
        hosts = Hosts(experiment.task.clients, experiment.runtime.max_clients_per_node, read_bindings())
        cap, clip = experiment.client.max_examples, experiment.client.clip
        blocks = self.strategy.takes_updates
        self.clipping = None if isinstance(clip, str) else Clipping(clip, self.layout, models=not blocks)
        self.guard = Guard(
            self.layout,
            task.classes,
            lambda client: cap if hosts.has_own_data(client) else min(cap, task.partition.size(client)),
            keeps_updates=blocks or self.clipping is not None,
            keeps_models=not blocks,
        )
        limit = experiment.client.time_limit
        most = max(1, MESSAGE // max(1, self.layout.num_bytes))
        chunk = experiment.runtime.chunk
        self.grid = CohortGrid(inner, hosts, task.partition.size, chunk=chunk, most=most, limit=limit)
        self.sites = Sites(self.grid, self.facts, experiment.client.timeout)
        self.memories = None if deployed else Memories(experiment)
        self.audit = Audit(experiment, folder, deployed)
        self.audit.listen(self.grid)
        self._failure_shown = False
        self._lost = 0
        """Rounds in a row in which nothing was learnt."""
        self._unsaved: Checkpoint | None = None
        self._open: OpenRound | None = None
        """The last round, until its model has been evaluated."""
        self._shares_process = bool(getattr(inner, "runs_clients_here", False))

    def run(self) -> None:
        """All rounds that are still to come, then the final files."""
        self.folder.check_room(record_bytes([self.arrays]))
        done = self._restore()
        self.recorder = Recorder(self.folder, done - (self._open is not None))
        self._greet()
        self.audit.started(done, self.arrays)
        try:
            self._close_unless_overlapped()
            for number in range(done + 1, self._last + 1):
                if why_ended(self.experiment, self.recorder.rounds):
                    break
                line, verdicts = self._round(number)
                self._record(line, verdicts)
                self._look_back(line, verdicts)
        except RunFailed:
            self._close()
            self._save()
            raise
        except STOPPED:
            self._save()
            raise
        finally:
            if self._open:
                self._open.cancel()
        self._save()
        if ended := why_ended(self.experiment, self.recorder.rounds):
            self._finish(ended)
        else:
            self.folder.set_status("paused", message=f"paused after round {self._last}, as run.until says")

    @property
    def _last(self) -> int:
        """The last round for now."""
        return min(self.experiment.run.until or self.experiment.rounds, self.experiment.rounds)

    def _record(self, line: dict[str, Any], verdicts: list[Verdict]) -> None:
        """A round's line, after the evaluation of its model if there is one."""
        if self.evaluation.is_due(line["round"]) or is_spent(self.experiment.stop, line):
            self._open = OpenRound(line, verdicts, self._measure(line["round"]))
            self._close_unless_overlapped()
        else:
            self._write(line, verdicts)

    def _measure(self, number: int) -> Callable[[], dict[str, Any]]:
        """The evaluation of the model as it is now, after this round: here, and at the sites that hold data out."""
        arrays, notes = self.arrays, self.memories.notes() if self.memories else None

        def measure() -> dict[str, Any]:
            asked = self.sites.ask(number, arrays)
            measured = self.evaluation.measure(arrays, notes)
            return measured | self.sites.answers(asked)

        return measure

    def _close_unless_overlapped(self) -> None:
        """An evaluation is waited for at once where the next round depends on it, or there is none, or its clients
        draw from this process's random numbers, as an evaluation may; where sites take part in it, or an auditor reads
        the rounds in their order."""
        stop = self.experiment.stop
        alone = self._shares_process or self.audit.on or self.sites.hold_out
        by_it = bool(stop.accuracy or stop.patience or stop.epsilon)
        if self._open and (alone or by_it or self._open.number >= self._last):
            self._close()

    def _close(self) -> None:
        """The open round's line, if there is one, once its model is evaluated."""
        if self._open:
            line = self._open.close()
            verdicts, self._open = self._open.verdicts, None
            self._write(line, verdicts)

    def _write(self, line: dict[str, Any], verdicts: list[Verdict]) -> None:
        self.audit.round(*self.recorder.record(line, verdicts), self.arrays)
        if self.deployed:
            announce("round", line=self.recorder.rounds[-1])

    def _look_back(self, line: dict[str, Any], verdicts: list[Verdict]) -> None:
        """After a round: what it taught will be saved; where rounds teach nothing, the run has failed.

        Lost rounds are not saved, so that a continued run tries them again.
        """
        stop = self.experiment.stop
        if not stop.lost_rounds or not is_lost(stop, line):
            self._lost = 0
            self._unsaved = self._checkpoint(line["round"])
            return
        self._lost += 1
        if self._lost >= stop.lost_rounds:
            raise RunFailed(f"{in_rounds(self._lost)} in a row taught the model nothing: {why_lost(line, verdicts)}")
        if line["round"] == self.experiment.rounds and all(is_lost(stop, line) for line in self.recorder.rounds):
            raise RunFailed(f"{in_rounds(self._lost)}, and the model learnt nothing: {why_lost(line, verdicts)}")

    def _save(self) -> None:
        """The last round that counts, if that is still to be done."""
        if self._unsaved is not None:
            save_checkpoint(self.folder.checkpoints, self._unsaved)
            self._unsaved = None

    def _greet(self) -> None:
        """Every host is up before the first clock starts."""
        facts = RecordDict({"config": ConfigRecord({**self.facts, **self.strategy.terms()})})
        self.grid.gather(self.experiment.runtime.workers, self.experiment.client.timeout, facts)
        hosts = [host.info.about() for host in self.grid.hosts.members.values()]
        if len({tuple(host.get(key) for key in SAME) for host in hosts}) > 1:
            logger.warning("hosts differ, so the same seed may give slightly different results: %s", hosts)
        write_json(self.folder.environment, environment(hosts))
        self.grid.on_reply.append(self._show_first_failure)
        self.folder.set_status("running")

    def _round(self, number: int) -> tuple[dict[str, Any], list[Verdict]]:
        """1 configure ▶ 2 send ▶ 3 overlap ▶ 4 guard each reply as it comes ▶ 5 clip ▶ 6 aggregate."""
        started = time.perf_counter()
        client = self.experiment.client
        reseed_globals(self.experiment.seed, "server", number)
        rate = learning_rate(client, number, self.experiment.rounds)

        messages = self._configure(number, rate)
        pending = self.grid.send(self._with_memories(messages), client.timeout)
        ahead = self._overlap(messages)
        replies = pending.replies() if self.memories is None else self.memories.take(pending.replies())
        asked = [message.metadata.dst_node_id for message in messages]
        ranks = ranks_asked(messages)
        inspection = self.guard.inspect(self.arrays, asked, replies, self._expected(), str(number), ranks)
        replied = time.perf_counter()
        self._close()
        for stray in inspection.strays:
            logger.warning("round %d: %s", number, stray)
        self.strategy.penalise([v.client for v in inspection.verdicts if v.verdict == "rejected"])
        line: dict[str, Any] = {
            "round": number,
            "lr": rate,
            "bytes_down": array_bytes(messages),
            "bytes_up": inspection.num_bytes,
            **local_privacy(client, number),
        }
        parts: dict[int, float] = {}
        if self.clipping:
            line["clip_bound"], parts = self.clipping.apply(inspection, self.arrays)
            line["clipped"] = len(parts)
        line |= self._aggregate(number, inspection, ahead)
        verdicts = self._final_verdicts(inspection.verdicts, parts)
        line |= outcomes(verdicts)
        counts = Counter(verdict.verdict for verdict in verdicts)
        line |= {kind: counts[kind] for kind in ("accepted", "filtered", "rejected", "failed")}
        line["retried"] = self.grid.retried
        behaving = self.memories.behaving() if self.memories else ()
        line["detection"] = None if self.truth is None else self.truth.score(number, verdicts, behaving).counts()
        line["seconds_clients"] = replied - started
        line["seconds_training"] = time.perf_counter() - started
        line["seconds"] = line["seconds_training"]
        return line, verdicts

    def _with_memories(self, messages: list[Message]) -> Sequence[Message]:
        """Simulated attackers are reminded of what they know."""
        return messages if self.memories is None else self.memories.add(messages, self.strategy.state_dict)

    def _overlap(self, messages: list[Message]) -> float:
        """While the clients train: the last checkpoint, the evaluation of the model that was sent, and what the
        strategy can compute ahead; the seconds of that."""
        self._save()
        if self._open:
            self._open.begin()
        started = time.perf_counter()
        if messages:
            self.strategy.look_ahead()
        return time.perf_counter() - started

    def _configure(self, number: int, rate: float) -> list[Message]:
        """Who trains, with what; each message lives as long as the round may."""
        client = self.experiment.client
        available = self.grid.look_around(client.min_replies, client.timeout)
        if not available:
            return []
        self.strategy.fit(min(client.per_round, available))
        config = ConfigRecord({RATE: rate, REPORT_LOSSES: self.strategy.report_losses, **self.facts})
        messages = list(self.strategy.configure_train(number, self.arrays, config, self.grid))
        for message in messages:
            message.metadata.group_id = str(number)
            message.metadata.ttl = client.timeout
        return messages

    def _expected(self) -> Expected:
        """Flower's strategies stop where two replies differ in their keys; ranks can do without a client's word."""
        losses = LOSSES if self.strategy.report_losses else frozenset()
        metrics = losses | ALWAYS
        required = metrics if self.strategy.losses_required else metrics - losses
        counts = REPORT_CLASSES in self.strategy.terms()
        return Expected(metrics, required, self.strategy.logged, class_counts=counts)

    def _aggregate(self, number: int, inspection: Inspection, ahead: float) -> dict[str, Any]:
        """The next model, or the old one where there is nothing to learn from. `ahead`: seconds of it done before."""
        answers, least = inspection.answers, self.experiment.client.min_replies
        if len(answers) < least:
            return {"kept": f"{len(answers)} replies, client.min-replies = {least}"}
        losses = [float(answer.numbers.get(LOSS, 0.0)) for answer in answers]  # type: ignore[arg-type]
        aggregate: ArrayRecord | None
        metrics: Mapping[str, object] | None
        started = time.perf_counter()
        try:
            aggregate, metrics = self.strategy.next_model(number, answers, inspection.updates)
        except Exception as error:
            reason = last_line(f"{type(error).__name__}: {error}")
            logger.warning("round %d: the strategy could not aggregate: %s", number, reason)
            return {"kept": f"aggregate.failed: {reason}"}
        defence = ahead + time.perf_counter() - started - self.strategy.seconds_learning
        self.arrays, problem = cast_aggregate(aggregate, self.arrays, self.layout)
        line: dict[str, Any] = {"train_loss": sum(losses) / len(losses), "seconds_defence": defence}
        if problem:
            logger.warning("round %d: the model is unchanged: %s", number, problem)
            line["kept"] = problem
        said = metrics if isinstance(metrics, Mapping) else {}
        own = {key: value for key, value in said.items() if isinstance(value, int | float)}
        return line | {key: value for key, value in own.items() if "." in key}

    def _final_verdicts(self, verdicts: list[Verdict], parts: Mapping[int, float]) -> list[Verdict]:
        """The guard's verdicts, with what the strategy's steps said of those it accepted, and who was clipped."""
        said = self.strategy.verdicts
        final = [said.get(v.client, v) if v.verdict == "accepted" else v for v in verdicts]
        final = [replace(v, clipped=parts[v.client]) if v.client in parts else v for v in final]
        return final if self.grid.hosts.shared else [replace(v, site=self.grid.hosts.site(v.client)) for v in final]

    def _show_first_failure(self, reply: Reply) -> None:
        """The user sees a client's error when it happens, not when the run has gone wrong."""
        if reply.records is None and not self._failure_shown:
            self._failure_shown = True
            site = self.grid.hosts.site(reply.client)
            logger.warning("client %d%s failed: %s", reply.client, f" of {site}" if site else "", reply.failure)

    def _checkpoint(self, number: int) -> Checkpoint:
        state = self.strategy.state_dict()
        model = {MODEL + name: view(array) for name, array in self.arrays.items()}
        memory = {STRATEGY + name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
        recent = self.clipping.state() if self.clipping else {}
        lengths = {CLIPPING + name: array for name, array in recent.items()}
        known = self.memories.state() if self.memories else {}
        attackers = {ATTACKERS + name: array for name, array in known.items()}
        open_round = {"open": self._open.state()} if self._open else {}
        arrays = {**model, **memory, **lengths, **attackers}
        return Checkpoint(number, arrays, {"strategy": plain, **open_round})

    def _restore(self) -> int:
        """Go on after the last whole checkpoint; returns its round, 0 for a new run."""
        checkpoint = load_checkpoint(self.folder.checkpoints) if self.experiment.run.resume else None
        if checkpoint is None:
            return 0
        state = _below(checkpoint.arrays, MODEL)
        self.arrays = to_record({e.name: torch.from_numpy(state[e.name]) for e in self.layout.entries})
        self.strategy.load_state_dict({**_below(checkpoint.arrays, STRATEGY), **checkpoint.plain["strategy"]})
        if self.clipping:
            self.clipping.restore(_below(checkpoint.arrays, CLIPPING))
        if self.memories:
            self.memories.restore(_below(checkpoint.arrays, ATTACKERS))
        unwritten = not any(line.get("round") == checkpoint.round for line in read_lines(self.folder.metrics))
        if unwritten and "open" in checkpoint.plain:
            self._open = OpenRound.restore(checkpoint.plain["open"], self._measure(checkpoint.round))
        logger.info("continuing after round %d", checkpoint.round)
        return checkpoint.round

    def _finish(self, ended: str) -> None:
        """The last files, and word of it."""
        write_results(self.folder, self.experiment, self.recorder, self.truth, self.arrays, self.facts, ended)
        self.audit.finished(self.arrays)
        self.folder.set_status("finished")
        if self.deployed:
            announce("finished", summary=read_json(self.folder.summary))


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
