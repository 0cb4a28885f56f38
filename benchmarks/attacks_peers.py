"""In the peers' venv: what byzfl's optimal ALIE and IPM make of a block of honest updates, for benchmarks/attacks.py.

byzfl's ALIE is μ + zσ, ours μ − zσ: it gets the mirrored block, and its vector is mirrored back.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

sys.path[0:0] = [str(Path(__file__).parents[1])]

from benchmarks.worker_peers import declare_torchvision_operators  # noqa: E402


def main(source: str, target: str, f: int) -> None:
    """Read the block, write a vector per attack and rule."""
    byzfl: Any = importlib.import_module("byzfl")
    honest = torch.load(source)
    rules = {
        "fedavg": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed-mean": byzfl.TrMean(f),
        "krum": byzfl.Krum(f),
        "multi-krum": byzfl.MultiKrum(f),
        "rfa": byzfl.GeometricMedian(nu=1e-6, T=200),
    }
    vectors = {}
    for name, rule in rules.items():
        ipm = byzfl.Optimal_InnerProductManipulation(agg=rule, pre_agg_list=[], f=f)
        alie = byzfl.Optimal_ALittleIsEnough(agg=rule, pre_agg_list=[], f=f)
        vectors["optimal-ipm", name] = ipm(honest)
        vectors["optimal-alie", name] = -alie(-honest)
    torch.save(vectors, target)


if __name__ == "__main__":
    KEPT = declare_torchvision_operators()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
