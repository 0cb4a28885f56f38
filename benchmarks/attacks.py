"""Compares optimal-alie and optimal-ipm with byzfl's, rule by rule, on one block of honest updates.

    python benchmarks/attacks.py

`harm`: ‖AGG(honest ∪ f copies) − mean(honest)‖ under our rule, with our vector and with byzfl's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from benchmarks import peers  # noqa: E402
from thistle.attacks.poisoning.optimal import OptimalAlie, OptimalIpm  # noqa: E402
from thistle.attacks.poisoning.parts import Facts  # noqa: E402
from thistle.strategies.aggregators import (  # noqa: E402
    Aggregate,
    coordinate_median,
    geometric_median,
    krum,
    mean,
    multi_krum,
    trimmed_mean,
)

HONEST, F, SIZE = 8, 2, 2000
RULES: dict[str, Callable[[Tensor], Aggregate]] = {
    "fedavg": mean,
    "median": coordinate_median,
    "trimmed-mean": lambda updates: trimmed_mean(updates, f=F),
    "krum": lambda updates: krum(updates, F),
    "multi-krum": lambda updates: multi_krum(updates, F),
    "rfa": lambda updates: geometric_median(updates, steps=200),
}


class Rule:
    """A rule alone, as an attacker tries it out."""

    honest = ()

    def __init__(self, name: str) -> None:
        self.rule = RULES[name]

    def step(self, honest: Tensor, malicious: Tensor) -> Tensor:
        """The aggregate."""
        return self.rule(torch.cat([honest, malicious])).vector


def main() -> int:
    """One line per attack and rule."""
    python = peers.interpreter()
    if python is None:
        return 1
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(HONEST, SIZE, generator=generator) + 0.5 * torch.randn(SIZE, generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "block.pt", Path(folder) / "vectors.pt"
        torch.save(honest, source)
        subprocess.run([str(python), str(HERE / "attacks_peers.py"), str(source), str(target), str(F)], check=True)
        theirs = torch.load(target)
    print(f"{'attack':14}{'rule':14}{'difference':>12}{'harm, ours':>14}{'byzfl':>14}")
    for (kind, name), vector in theirs.items():
        facts = Facts(classes=10, n=HONEST + F, f=F, defence=Rule(name))
        ours = (OptimalAlie if kind == "optimal-alie" else OptimalIpm)()(honest, facts)
        apart = float((ours - vector).norm() / vector.norm())
        harms = [float((Rule(name).step(honest, v.expand(F, -1)) - honest.mean(0)).norm()) for v in (ours, vector)]
        print(f"{kind:14}{name:14}{apart:12.1e}{harms[0]:14.4g}{harms[1]:14.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
