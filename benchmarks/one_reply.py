"""What a single accepted reply can do to each strategy, without client.clip and with it.

Digits, the model `mlp`, ten clients, all in every round, 20 rounds. Client 3 trains honestly but sends a model whose
update is just below the guard's bound, 0.99 · 100·max(1, ‖x‖) long: once, in round 10, or in every round. It knows
what the others send, says that its loss is 1, and points against their mean, against its own update, or anywhere: the
table has the worst of the three. Every reply passes the real guard.

    python benchmarks/one_reply.py [--clip 1.5] [--strategy NAME]… [--json FILE]

Columns: final accuracy without the reply, with it once, with it always, and how far the model moved in round 10 (‖x₁₁ −
x₁₀‖ over the same without the reply); then the same with client.clip. (`calfat` aggregates as its base does.)
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor

from thistle.engines.inline import run_inline
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import torch_rng
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.protocol.factors import to_factors
from thistle.protocol.layout import to_record, to_state
from thistle.server import federation
from thistle.server.guard.inspection import Expected, Guard, Inspection
from thistle.server.guard.payload import FARTHEST, LARGEST
from thistle.server.transport.reply import Reply
from thistle.strategies.build import AUTO_CLIP
from thistle.strategies.registry import strategies

ATTACKER, ROUND, ROUNDS = 3, 10, 20
DIRECTIONS = ("mean", "own", "random")
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "stop.lost-rounds": 0,
    "task.clients": 10,
    "client.per-round": 10,
    "client.epochs": 1,
    "client.batch-size": 25,
    "client.lr": 0.25,
    "model.name": "mlp",
    "evaluate.every": ROUNDS,
    "runtime.workers": 1,
}


NUMBERS = MetricRecord({"num-examples": 100, "loss": 1.0, "seconds": 1.0})


@dataclass(frozen=True)
class Plan:
    """When the one client lies, and which way; no direction: never."""

    direction: str = ""
    always: bool = False

    def lies_in(self, number: int) -> bool:
        return bool(self.direction) and (self.always or number == ROUND)


class Bent(Guard):
    """The real guard, on replies of which one is bent before it looks at them."""

    plan = Plan()
    models: ClassVar[list[Tensor]] = []
    """The model that each round sent."""

    def inspect(
        self,
        sent: ArrayRecord,
        asked: Collection[int],
        replies: Iterable[Reply],
        expected: Expected,
        group_id: str,
        ranks: Mapping[int, float] | None = None,
    ) -> Inspection:
        replies, rank = list(replies), (ranks or {}).get(ATTACKER)
        self.models.append(self.layout.vector(to_state(sent)))
        judge = super().inspect
        ruined = float(self.models[-1].abs().max()) > LARGEST / 2  # what is far past the bounds needs no more lies
        if ruined or not self.plan.lies_in(int(group_id)):
            return judge(sent, asked, replies, expected, group_id, ranks)
        wanted, self.keeps_updates = self.keeps_updates, True
        for step in range(1 if rank is None else 2):  # factors of a vector may be shorter than it: once more from there
            seen = judge(sent, asked, replies, expected, group_id, ranks)
            updates = torch.from_numpy(seen.updates)
            own = torch.tensor([answer.client == ATTACKER for answer in seen.answers], dtype=torch.bool)
            if step and not own.any():  # factors have bounds of their own, which a ruined model is past
                return seen
            direction = updates[own][0] if step else self._direction(updates, own, int(group_id))
            replies = [self._bend(one, sent, direction, rank) if one.client == ATTACKER else one for one in replies]
        self.keeps_updates = wanted
        inspection = judge(sent, asked, replies, expected, group_id, ranks)
        verdicts = {verdict.client: verdict for verdict in inspection.verdicts}
        assert verdicts[ATTACKER].verdict == "accepted", verdicts[ATTACKER]
        return inspection

    def _direction(self, updates: Tensor, own: Tensor, number: int) -> Tensor:
        """As planned; anywhere, where a model that has blown up leaves no honest update that the guard accepts."""
        seen = {"mean": updates[~own], "own": updates[own]}.get(self.plan.direction, updates[:0])
        if len(seen) and bool(seen.mean(0).any()):
            return -seen.mean(0)
        return torch.randn(updates.shape[1], generator=torch_rng(0, "direction", number))

    def _bend(self, reply: Reply, sent: ArrayRecord, direction: Tensor, rank: float | None) -> Reply:
        """The model that was sent, and a step in this direction that is just short enough."""
        state = to_state(sent)
        vector = self.layout.vector(state)
        length = 0.99 * FARTHEST * max(1.0, float(vector.double().norm()))
        moved = vector + direction * (length / direction.double().norm()).float()
        bent = self.layout.state(moved.clamp(-0.99 * LARGEST, 0.99 * LARGEST), state)
        arrays = to_record(bent) if rank is None else to_factors(bent, sent, self.layout, rank)
        records = reply.records or {"metrics": NUMBERS}  # its own training may fail on a model that has blown up
        numbers = records["metrics"]
        metrics = MetricRecord({**numbers, **{name: 1.0 for name in numbers if name.startswith("loss")}})  # type: ignore[dict-item]
        return replace(reply, records={**records, "arrays": arrays, "metrics": metrics})


@dataclass(frozen=True)
class Result:
    """One run."""

    accuracy: float
    moved: float
    """‖x₁₁ − x₁₀‖."""
    clipped: int
    replies: int
    """That passed the guard."""


def run(strategy: str, clip: float | str, plan: Plan, **more: Any) -> Result:
    """One run, in a folder that is thrown away."""
    Bent.plan, Bent.models = plan, []
    with tempfile.TemporaryDirectory() as out:
        keys = {**SETTINGS, "strategy.name": strategy, "client.clip": clip, **more, "run.out": out, "run.name": "run"}
        run_inline(Experiment.of(keys))
        summary = read_json(RunFolder(Path(out) / "run").summary)
    moved = float((Bent.models[ROUND] - Bent.models[ROUND - 1]).double().norm())
    return Result(summary["final_accuracy"], moved, summary["clipped"], summary["accepted"] + summary["filtered"])


@dataclass(frozen=True)
class Row:
    """A strategy under one setting of client.clip."""

    clean: float
    once: float
    always: float
    moved: float
    """In round ROUND, in units of the same round without the reply."""
    touched: float
    """The share of honest updates that was clipped without any attack."""


def measure(strategy: str, clip: float | str) -> Row:
    """The worst direction, for each column."""
    clean = run(strategy, clip, Plan())
    once = [run(strategy, clip, Plan(direction)) for direction in DIRECTIONS]
    always = [run(strategy, clip, Plan(direction, always=True)) for direction in DIRECTIONS]
    return Row(
        clean.accuracy,
        min(one.accuracy for one in once),
        min(one.accuracy for one in always),
        max(one.moved for one in once) / clean.moved,
        clean.clipped / clean.replies,
    )


def line(strategy: str, off: Row, on: Row) -> str:
    """A row of the table in docs/security.md."""
    cells = [f"{value:.1%}" for value in (off.clean, off.once, off.always)] + [_times(off.moved)]
    cells += [f"{value:.1%}" for value in (on.clean, on.once, on.always)] + [_times(on.moved)]
    return f"| `{strategy}` | " + " | ".join(cell.replace("%", " %") for cell in cells) + " |"


def _times(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "–"
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clip", type=float, default=AUTO_CLIP)
    parser.add_argument("--strategy", action="append", choices=list(strategies()))
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    federation.Guard = Bent  # type: ignore[misc]
    rows: dict[str, dict[str, Any]] = {}
    print("| strategy | clean | once | always | moved | clean | once | always | moved |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for strategy in chosen.strategy or [name for name in strategies() if name != "calfat"]:
        off, on = measure(strategy, "off"), measure(strategy, chosen.clip)
        print(line(strategy, off, on), flush=True)
        rows[strategy] = {"off": asdict(off), "on": asdict(on)}
        if chosen.json:
            chosen.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
