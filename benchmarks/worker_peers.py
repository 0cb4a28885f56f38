"""The worker of the peers' venv: byzfl and geom_median over the same block."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path[0:0] = [str(Path(__file__).parents[1])]

from benchmarks.worker import serve  # noqa: E402

LARGEST = 4 * 2**30  # byzfl's NNM gathers n·(n - f)·d values: not above this


def declare_torchvision_operators() -> torch.library.Library | None:
    """byzfl imports torchvision, whose compiled part needs CUDA: beside a CPU-only torch declare what it misses.

    Does nothing where torchvision's own operators load. The library must be kept: it undeclares when collected.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.origin:
        return None
    for compiled in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(compiled))
            return None
        except OSError:
            continue
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def converged_caf() -> Any:
    """byzfl's CAF with more steps of its power method: it takes one from a random start, too few for an eigenvector."""
    module = importlib.import_module("byzfl.aggregators.aggregators")
    source = inspect.getsource(module.CAF)
    more = source.replace("max_iters=1)", "max_iters=1000)")
    assert more != source, "byzfl has changed its power method"
    made = dict(vars(module))
    exec(more, made)
    return made["CAF"]


def calls_for(u: Tensor) -> dict[str, Callable[[], Any]]:
    """What can be asked for: `geom_median` and byzfl's rules, and byzfl's vectors for comparison."""
    byzfl: Any = importlib.import_module("byzfl")
    compute_geometric_median: Any = importlib.import_module("geom_median.torch").compute_geometric_median
    n, f, far = len(u), len(u) // 5, float(u.shape[1] ** 0.5)
    points = list(u)
    calls: dict[str, Callable[[], Any]] = {
        "torch mean": lambda: u.mean(0),
        "byzfl mean": lambda: byzfl.Average()(u),
        "byzfl geometric_median": lambda: byzfl.GeometricMedian(T=3)(u),
        "geom_median geometric_median": lambda: compute_geometric_median(points, None, maxiter=4),
        "byzfl coordinate_median": lambda: byzfl.Median()(u),
        "byzfl trimmed_mean": lambda: byzfl.TrMean(f)(u),
        "byzfl meamed": lambda: byzfl.Meamed(f)(u),
        "byzfl caf": lambda: byzfl.CAF(f)(u),
        "byzfl krum": lambda: byzfl.Krum(f)(u),
        "byzfl multi_krum": lambda: byzfl.MultiKrum(f)(u),
        "byzfl centered_clipping": lambda: byzfl.CenteredClipping(L=3, tau=far)(u),
        "vector:mean": lambda: byzfl.Average()(u),
        "vector:geometric_median": lambda: byzfl.GeometricMedian(nu=1e-6, T=200)(u),
        "vector:geom_median": lambda: compute_geometric_median(points, None, maxiter=200).median,
        "vector:coordinate_median": lambda: byzfl.Median()(u),
        "vector:trimmed_mean": lambda: byzfl.TrMean(f)(u),
        "vector:meamed": lambda: byzfl.Meamed(f)(u),
        "vector:mda": lambda: byzfl.MDA(f)(u),
        "vector:caf": lambda: converged_caf()(f)(u),
        "vector:arc": lambda: byzfl.ARC(f)(u.clone()),
        "vector:clipped_mean": lambda: byzfl.Average()(byzfl.Clipping(far)(u.clone())),
        "vector:krum": lambda: byzfl.Krum(f)(u),
        "vector:multi_krum": lambda: byzfl.MultiKrum(f)(u),
        "vector:centered_clipping": lambda: byzfl.CenteredClipping(L=3, tau=far)(u),
        "vector:nnm": lambda: byzfl.NNM(f)(u),
    }
    if 4 * n * (n - f) * u.shape[1] <= LARGEST:
        calls["byzfl nnm"] = lambda: byzfl.NNM(f)(u)
    return calls


if __name__ == "__main__":
    KEPT = declare_torchvision_operators()
    serve(calls_for)
