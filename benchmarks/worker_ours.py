"""The worker of this venv: our kernels, flwr's Krum, and the yardsticks of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum
from torch import Tensor

sys.path[0:0] = [str(Path(__file__).parents[1])]

from benchmarks.worker import serve  # noqa: E402
from thistle.strategies import aggregators  # noqa: E402
from thistle.strategies.aggregators.diameter import MOST  # noqa: E402


def calls_for(u: Tensor) -> dict[str, Callable[[], Any]]:
    """Everything that can be asked for. `vector:` calls return a rule's vector for comparison with byzfl's."""
    n, f, far = len(u), len(u) // 5, u.shape[1] ** 0.5
    uneven = aggregators.cap_weights(torch.arange(1.0, n + 1), 1 / (2 * f + 1))
    calls: dict[str, Callable[[], Any]] = {
        "torch mean": lambda: u.mean(0),
        "mean": lambda: aggregators.mean(u),
        "gram": lambda: aggregators.gram(u),
        "geometric_median": lambda: aggregators.geometric_median(u),
        "coordinate_median": lambda: aggregators.coordinate_median(u),
        "trimmed_mean": lambda: aggregators.trimmed_mean(u, f),
        "weighted_median": lambda: aggregators.coordinate_median(u, uneven),
        "weighted_trimmed_mean": lambda: aggregators.trimmed_mean(u, f, weights=uneven),
        "meamed": lambda: aggregators.meamed(u, f),
        "clipped_mean": lambda: aggregators.clipped_mean(u),
        "robust_learning_rate": lambda: aggregators.robust_learning_rate(u, f + 1),
        "arc": lambda: aggregators.adaptive_clipping(u, f),
        "caf": lambda: aggregators.caf(u, f),
        "mda": lambda: aggregators.mda(u, min(f, MOST)),
        "krum": lambda: aggregators.krum(u, f),
        "multi_krum": lambda: aggregators.multi_krum(u, f),
        "bulyan": lambda: aggregators.bulyan(u, f),
        "centered_clipping": lambda: aggregators.centered_clipping(u, far, 3),
        "nnm": lambda: aggregators.nearest_neighbour_mixing(u, f),
        "nnm + geometric_median": lambda: _mixed(u, f),
        "fltrust": lambda: aggregators.fltrust(u, u[1]),
        "foolsgold": lambda: aggregators.foolsgold(aggregators.gram(u, centred=False)),
        "vector:mean": lambda: aggregators.mean(u).vector,
        "vector:geometric_median": lambda: aggregators.geometric_median(u, steps=200, tolerance=0.0).vector,
        "vector:coordinate_median": lambda: aggregators.coordinate_median(u).vector,
        "vector:trimmed_mean": lambda: aggregators.trimmed_mean(u, f).vector,
        "vector:meamed": lambda: aggregators.meamed(u, f).vector,
        "vector:mda": lambda: aggregators.mda(u, f).vector,
        "vector:caf": lambda: aggregators.caf(u, f).vector,
        "vector:arc": lambda: aggregators.adaptive_clipping(u, f).float()[:, None] * u,
        "vector:clipped_mean": lambda: aggregators.clipped_mean(u, bound=far).vector,
        # byzfl counts n - f - 1 neighbours where the paper has n - f - 2: its f is our f - 1
        "vector:krum": lambda: aggregators.krum(u, f - 1).vector,
        "vector:multi_krum": lambda: aggregators.multi_krum(u, f - 1, n - f).vector,
        "vector:centered_clipping": lambda: aggregators.centered_clipping(u, far, 3).vector,
        "vector:nnm": lambda: aggregators.nearest_neighbour_mixing(u, f).float() @ u,
        "yard:read": u.sum,
        "yard:gemm": _gemm(),
        "yard:minimum": _minimum(),
    }
    return calls | _flower(u, f)


def _mixed(u: Tensor, f: int) -> aggregators.Aggregate:
    products = aggregators.gram(u)
    mixing = aggregators.nearest_neighbour_mixing(u, f, products=products)
    return aggregators.geometric_median(u, mixing=mixing, products=products)


def _gemm() -> Callable[[], Any]:
    a = torch.randn(1024, 1024)
    return lambda: a @ a


def _minimum() -> Callable[[], Any]:
    a, b, out = torch.randn(3, 2**15).unbind(0)

    def run() -> None:
        for _ in range(512):
            torch.minimum(a, b, out=out)

    return run


def _flower(u: Tensor, f: int) -> dict[str, Callable[[], Any]]:
    """Flower's own Krum over records as they come from clients; its decoding of them timed apart."""
    cache: list[list[RecordDict]] = []

    def contents() -> list[RecordDict]:
        if not cache:
            cache.append([RecordDict({"arrays": ArrayRecord([row.numpy()])}) for row in u])
        return cache[0]

    def decode() -> None:
        for content in contents():
            content.array_records["arrays"].to_numpy_ndarrays()

    return {"flwr krum": lambda: select_multikrum(contents(), f, 1), "flwr decode": decode}


if __name__ == "__main__":
    serve(calls_for)
