"""FLDetector: clients whose updates do not follow from their last ones are left out permanently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Positive
from thistle.strategies import aggregators
from thistle.strategies.aggregators.prediction import hessian_product, is_split, prediction_errors, upper_cluster
from thistle.strategies.memory.per_client import PerClient
from thistle.strategies.memory.windows import Windows
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing

DETECTED = PerClient("fldetector.detected", unseen=0.0)
NAME = "fldetector"


@strategy(NAME, "Zhang et al. 2022")
class FLDetector(Weighted, Pipeline):
    """The mean without clients whose updates do not follow from their last ones.

    It takes for granted that clients take part steadily: only who was there in the last round too can be judged. With
    10 of 50 clients per round that is two in ten (docs/papers.md has what it costs). Nobody is left out in the first
    `window` + 2 rounds, and who is left out stays out; then it starts to count anew.
    """

    window: Positive = setting("N: the rounds over which a client's errors are averaged", default=10)
    mixable = False

    def steps(self) -> list[Step | None]:
        """One step that detects and averages."""
        return [Detection(self.window, self.seed)]

    def is_mean(self) -> bool:
        """It is one until somebody is detected."""
        return True


@dataclass(frozen=True)
class Detection:
    """Δ̂_i = Δ_i^{t−1} + Ĥ(x_t − x_{t−1}), errors ‖Δ̂_i − Δ_i‖ in units of the round's mean, averaged over N rounds.

    Once N moves of the model are known and the gap statistic finds more than one cluster of averages, 2-means splits
    them, and the upper part is out. Then moves and errors are forgotten: what was seen under attack does not apply to
    those that are left. The memory holds the last round's updates, 2N + 2 vectors and N numbers per client.
    """

    window: int
    seed: int
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        out = torch.from_numpy(DETECTED.of(round.memory, round.ids) > 0)
        progress = self._judge(round, progress.drop(out, NAME, "detected in an earlier round"))
        if not progress.kept.any():
            return nothing(progress)
        found = aggregators.mean(kept_updates(progress), round.prior[progress.kept])
        done = aggregated(round, progress, found, NAME)
        return done.note(**self._moved(round, progress, found.vector), **_sent(round, progress))

    def _judge(self, round: Round, progress: Progress) -> Progress:
        """Scores for those who were there in the last round too, and without those that are detected now."""
        scores = torch.full((len(round.ids),), torch.nan, dtype=torch.float64)
        rows, places = _rows_of_last(round, progress)
        moves = round.memory.get("fldetector.moves")
        if moves is None or not len(moves) or not rows:
            return progress
        errors = self._errors(round, progress.updates, zip(rows, places, strict=True)).numpy()
        relative = errors / errors.mean() if errors.mean() > 0 else np.ones_like(errors)
        windows = Windows("fldetector.errors", self.window)
        notes = windows.after(round.memory, [round.ids[row] for row in rows], relative)
        ids, means = windows.ids(notes), windows.means(notes)
        by_id = dict(zip(ids.tolist(), means.tolist(), strict=True))
        scores[rows] = torch.tensor([by_id[round.ids[row]] for row in rows], dtype=torch.float64)
        progress = replace(progress, scores=scores if progress.scores is None else progress.scores).note(**notes)
        return self._detect(round, progress, ids, means) if len(moves) >= self.window else progress

    def _errors(self, round: Round, updates: Tensor, pairs: Iterable[tuple[int, int]]) -> Tensor:
        names = ("moves", "changes", "model", "sent")
        moves, changes, model, sent = (torch.from_numpy(round.memory[f"{NAME}.{name}"]) for name in names)
        product = hessian_product(moves, changes, round.model - model)
        return prediction_errors(((updates[row], sent[place]) for row, place in pairs), product)

    def _detect(self, round: Round, progress: Progress, ids: np.ndarray, means: np.ndarray) -> Progress:
        if not is_split(means, numpy_rng(self.seed, "gap", round.number)):
            return progress
        caught = ids[upper_cluster(means)[0]]
        rows = torch.from_numpy(np.isin(np.array(round.ids, np.uint64), caught))
        forgotten = Windows("fldetector.errors", self.window).empty()
        return progress.drop(rows, NAME, "its updates are not as predicted").note(
            **DETECTED.after(round.memory, caught, np.ones(len(caught))), **forgotten
        )

    def _moved(self, round: Round, progress: Progress, step: Tensor) -> dict[str, np.ndarray]:
        """What Ĥ is made of: the last N moves of the model and changes of the aggregate; none after a detection."""
        now = {"fldetector.model": round.model.numpy().copy(), "fldetector.step": step.numpy()}
        if "fldetector.model" not in round.memory:
            return now
        pairs = {"moves": (round.model.numpy(), "model"), "changes": (step.numpy(), "step")}
        anew = DETECTED.name in progress.notes
        for name, (value, before) in pairs.items():
            past = round.memory.get(f"{NAME}.{name}", np.empty((0, len(value)), np.float32))
            grown = np.vstack([past, value - round.memory[f"{NAME}.{before}"]])[-self.window :]
            now[f"{NAME}.{name}"] = grown[:0] if anew else grown
        return now


def _rows_of_last(round: Round, progress: Progress) -> tuple[list[int], list[int]]:
    """Rows that are still in and were there in the last round, and their rows then."""
    before = round.memory.get("fldetector.sent.ids", np.empty(0, np.uint64))
    place = {int(client): row for row, client in enumerate(before)}
    kept = progress.kept.tolist()
    rows = [row for row, client in enumerate(round.ids) if kept[row] and client in place]
    return rows, [place[round.ids[row]] for row in rows]


def _sent(round: Round, progress: Progress) -> dict[str, np.ndarray]:
    """What those that are still in sent in this round."""
    ids = [client for client, kept in zip(round.ids, progress.kept.tolist(), strict=True) if kept]
    return {"fldetector.sent.ids": np.array(ids, np.uint64), "fldetector.sent": kept_updates(progress).numpy().copy()}
