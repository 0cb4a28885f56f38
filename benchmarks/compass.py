"""What tells honest from malicious updates, round by round, and what server learning does to it.

    python benchmarks/compass.py [--attacks mix,label-flip,…] [--fraction 0.3] [--seeds 0] [--figure scores.png]

The preset digits-mix with a strategy that knows the attackers and leaves them out by hand (geometric median, clip), so
that all scores are seen along the same good trajectory: with the server learning throughout (γ = 0.5, RoFSL's), in the
first 15 rounds, or never. Figures are AUCs per ten rounds: how often an honest update scores above a malicious one.
Scores: RoFSL's loss score (ρ = 0.1), cos(Δ, −g0), and the agreement with the server's classes that `evidence` goes by.
`--figure`: the mean score of both kinds over the rounds, of the first attack and seed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

import thistle  # noqa: E402
from thistle.attacks.roles import attackers  # noqa: E402
from thistle.experiments.experiment import Experiment  # noqa: E402
from thistle.server.recording.checkpoint import load_checkpoint  # noqa: E402
from thistle.strategies.aggregators import geometric_median, norms  # noqa: E402
from thistle.strategies.pipeline import Pipeline  # noqa: E402
from thistle.strategies.registry import setting  # noqa: E402
from thistle.strategies.rounds import Progress, Round, Step  # noqa: E402
from thistle.strategies.steps import Aggregation, AngleFilter, Clip, LossFilter  # noqa: E402

SCORES = ("loss score", "cos(Δ, −g0)", "agreement")
LEARNING = {"always": {}, "15 rounds": {"strategy.gamma-schedule": "falling"}, "never": {"strategy.gamma": 0.0}}
SEEN = "probe.seen"
"""In the strategy's memory: rows of (round, client, the scores)."""


@dataclass(frozen=True)
class KnowAll:
    """Writes down every client's scores, and drops the attackers."""

    malicious: frozenset[int]
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.server is not None
        judges = (LossFilter(0.1, 0.5), AngleFilter(0.0))
        scores = [judge.scores(round, progress.updates) for judge in judges]
        scores.append(round.server.anchor().scores(progress.updates, norms(progress.updates)))
        ids = np.array(round.ids, np.float64)
        now = np.column_stack([np.full_like(ids, round.number), ids, *(one.numpy() for one in scores)])
        before = round.memory.get(SEEN, np.empty((0, now.shape[1])))
        out = torch.tensor([client in self.malicious for client in round.ids])
        return progress.note(**{SEEN: np.vstack([before, now])}).drop(out, "oracle")


class Probe(Pipeline):
    """Leaves out whom it is told to."""

    out: str = setting("the attackers' numbers, with commas", default="")
    tau: float = setting("as RoFSL's", default=1.0)
    gamma: float = setting("as RoFSL's", default=0.5)

    def steps(self) -> list[Step | None]:
        """Drop, aggregate, clip, learn."""
        malicious = frozenset(int(one) for one in self.out.split(",") if one)
        median = Aggregation("geometric-median", geometric_median)
        return [KnowAll(malicious), median, Clip(self.tau), self.server_learning()]

    def server_data_for(self) -> str:
        """For the scores."""
        return "strategy.name = Probe"


def observe(attack: str, fraction: float, seed: int, learning: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """Rows of (round, client, scores), who of them is malicious, and the final accuracy."""
    kind, _, strength = attack.partition(":")
    keys = {"seed": seed, "attack.kind": kind, "attack.fraction": fraction, **learning}
    if strength:
        keys["attack.strength"] = float(strength)
    if kind == "mimic":
        keys["attack.omniscient"] = True
    chosen = Experiment.of({"task.clients": 50, "seed": seed, "attack.kind": kind, "attack.fraction": fraction})
    bad = attackers(chosen.attack, 50, seed)
    keys |= {"strategy.name": "compass:Probe", "strategy.out": ",".join(map(str, sorted(bad)))}
    with tempfile.TemporaryDirectory() as out:
        run = thistle.run("digits-mix", keys, engine="inline", out=out, progress=False)
        found = load_checkpoint(run.folder / "checkpoint")
        assert found is not None
        (name,) = [key for key in found.arrays if key.endswith(SEEN)]
        rows, accuracy = found.arrays[name], float(run.summary["final_accuracy"])
    return rows, np.isin(rows[:, 1], list(bad)), accuracy


def auc(honest: np.ndarray, malicious: np.ndarray) -> float:
    """How often an honest score is above a malicious one; equal ones count half."""
    if not len(honest) or not len(malicious):
        return float("nan")
    above = honest[:, None] > malicious
    return float((above + 0.5 * (honest[:, None] == malicious)).mean())


def table(attacks: list[str], fraction: float, seeds: list[int]) -> None:
    """One line per attack, way of learning and score."""
    print("| attack | server learns | accuracy, % | score | 1–10 | 11–20 | 21–30 | 31–40 | 41–50 | 51–60 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for attack in attacks:
        for when, learning in LEARNING.items():
            seen = [observe(attack, fraction, seed, learning) for seed in seeds]
            accuracy = 100 * np.mean([one[2] for one in seen])
            for place, score in enumerate(SCORES):
                cells = [[_in_ten(rows, bad, place, start) for start in range(0, 60, 10)] for rows, bad, _ in seen]
                means = " | ".join(f"{value:.2f}" for value in np.mean(cells, axis=0))
                print(f"| {attack} | {when} | {accuracy:.1f} | {score} | {means} |", flush=True)


def _in_ten(rows: np.ndarray, bad: np.ndarray, place: int, start: int) -> float:
    then = (rows[:, 0] > start) & (rows[:, 0] <= start + 10)
    return auc(rows[then & ~bad, 2 + place], rows[then & bad, 2 + place])


def draw(attack: str, fraction: float, seed: int, path: str) -> None:
    """RoFSL's loss score while the server learns throughout; the agreement while it does so for 15 rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = {
        "RoFSL's loss score; the server always learns": (0, "always"),
        "Evidence's agreement; it learns in 15 rounds": (2, "15 rounds"),
    }
    figure, grid = plt.subplots(1, 2, figsize=(11, 4), dpi=150)
    for axes, (title, (place, when)) in zip(grid, shown.items(), strict=True):
        rows, bad, _ = observe(attack, fraction, seed, LEARNING[when])
        for name, chosen, marker, colour in (("honest", ~bad, "o", "#2b7bba"), ("malicious", bad, "x", "#d62828")):
            numbers, scores = rows[chosen, 0], rows[chosen, 2 + place]
            axes.plot(numbers, scores, marker, ms=3, alpha=0.35, color=colour)
            seen = np.unique(numbers)
            axes.plot(seen, [scores[numbers == one].mean() for one in seen], color=colour, label=f"{name}, mean")
        axes.axhline(0, color="grey", lw=0.8)
        axes.set(title=title, xlabel="round", ylabel="score (higher: more honest)")
        axes.legend(frameon=False)
    what = attack.replace(":", ", strength ")
    figure.suptitle(f"digits, {fraction:.0%} attack ({what}); the attackers are left out by hand")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """As the first lines of the file say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", default="mix,label-flip,sign-flip:5,gaussian,sign-flip:1,ipm:0.5,zero,min-max")
    parser.add_argument("--fraction", type=float, default=0.3)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--figure", default="")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    given.figure = given.figure and str(Path(given.figure).resolve())
    os.chdir(HERE)  # where the strategy's own code is looked for
    attacks, seeds = given.attacks.split(","), [int(seed) for seed in given.seeds.split(",")]
    if given.figure:
        draw(attacks[0], given.fraction, seeds[0], given.figure)
    else:
        table(attacks, given.fraction, seeds)


if __name__ == "__main__":
    main()
