"""Times every aggregation kernel beside byzfl, geom_median and Flower: CPU time, one thread, interleaved, medians.

    python benchmarks/aggregators.py [--sizes 20x1600000,100x400000] [--rounds 7] [--no-peers]

Both venvs' workers hold the same block; each round runs every call once, in turn, so that a busy machine hits all.
`near`: the least time that its passes need, one after the other, by the yardsticks of the machine itself, as a share of
what it takes. The yardsticks: a sum over the block (bandwidth), a 1024³ float32 matrix product (arithmetic), minima of
cached rows (comparisons).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from benchmarks import peers  # noqa: E402
from thistle.strategies.aggregators.network import network  # noqa: E402

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # freed means gone from the RSS
PEERS = {
    "mean": ("byzfl mean",),
    "geometric_median": ("byzfl geometric_median", "geom_median geometric_median"),
    "coordinate_median": ("byzfl coordinate_median",),
    "trimmed_mean": ("byzfl trimmed_mean",),
    "meamed": ("byzfl meamed",),
    "caf": ("byzfl caf",),
    "krum": ("byzfl krum", "flwr krum", "flwr decode"),
    "multi_krum": ("byzfl multi_krum",),
    "centered_clipping": ("byzfl centered_clipping",),
    "nnm": ("byzfl nnm",),
}
OURS = (
    *("torch mean", "mean", "gram", "geometric_median", "coordinate_median", "trimmed_mean", "krum", "multi_krum"),
    *(
        "weighted_median",
        "weighted_trimmed_mean",
        "meamed",
        "clipped_mean",
        "robust_learning_rate",
        "arc",
        "caf",
        "mda",
    ),
    *("bulyan", "centered_clipping", "nnm", "nnm + geometric_median", "fltrust", "foolsgold"),
)
PEERS_MEAN = "peers' torch mean"
SLOW_SECONDS = 5.0  # a call that has used so much is not repeated beyond three times


class Worker:
    """A child process with one block, asked over its pipes."""

    def __init__(self, python: Path | str, script: str, n: int, d: int, folder: str, **environment: str) -> None:
        command = [str(python), str(HERE / script), str(n), str(d), folder]
        self.script, settings = script, os.environ | ONE_THREAD | environment
        errors = None if python == sys.executable else subprocess.DEVNULL  # the peers' warnings are not ours
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=settings
        )
        self.names: list[str] = self._answer()["names"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.script} ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, name: str) -> Any:
        """One request, one value."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "name": name}) + "\n")
        self.process.stdin.flush()
        return next(iter(self._answer().values()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measured(workers: list[Worker], rounds: int) -> dict[str, float]:
    """Median CPU seconds of every call of every worker, all taken in turn; yardsticks: the least instead."""
    samples: dict[tuple[int, str], list[float]] = {}
    calls = [(i, name) for i, worker in enumerate(workers) for name in worker.names if not name.startswith("vector:")]
    for key in calls:
        workers[key[0]].ask("time", key[1])  # warm up
        samples[key] = []
    for _ in range(rounds):
        for key, seen in samples.items():
            if len(seen) < 3 or sum(seen) < SLOW_SECONDS:
                seen.append(workers[key[0]].ask("time", key[1]))
    return {
        PEERS_MEAN if i and name == "torch mean" else name: min(seen) if ":" in name else statistics.median(seen)
        for (i, name), seen in samples.items()
    }


def work(name: str, n: int) -> list[tuple[float, float, float]]:
    """What each pass of a kernel must do, for one column: values read, float operations in products, comparisons."""
    f = n // 5
    theta = n - 2 * f
    product, read = (n, 2.0 * n * n, 0), (n, 0, 0)  # a product reads while it computes
    median = (n, 0, _comparisons(n, (n - 1) // 2, n // 2) + 2 * n)  # 2n: whose values were kept
    trimmed = (n, 0, _comparisons(n, f, n - f - 1) + (n - 2 * f) + 2 * n)
    weighted = (n, 0, 2 * _comparisons(n, 0, n - 1, True) + 2 * n)  # in float64
    around = (n, 0, _comparisons(n, 0, n - 1, True) + 6 * f + (n - f) + 2 * n)
    window = (n, 0, _comparisons(theta, 0, theta - 1, True) + 12 * f + 3 * theta)
    passes: dict[str, list[tuple[float, float, float]]] = {
        "torch mean": [read],
        "mean": [read],
        "gram": [product],
        "geometric_median": [product, read],
        "coordinate_median": [median],
        "trimmed_mean": [trimmed],
        "weighted_median": [weighted],
        "weighted_trimmed_mean": [weighted],
        "meamed": [around],
        "clipped_mean": [read, read],
        "robust_learning_rate": [(n, 0, 2 * n)],
        "arc": [read],
        "caf": [product, read],
        "mda": [product, read],
        "krum": [product],
        "multi_krum": [product, read],
        "bulyan": [product, window],
        "centered_clipping": [product, read],
        "nnm": [product],
        "nnm + geometric_median": [product, read],
        "fltrust": [read, read],
        "foolsgold": [product],
    }
    return passes[name]


def _comparisons(n: int, low: int, high: int, inside_sorted: bool = False) -> int:
    return sum(minimum + maximum for _, _, minimum, maximum in network(n, low, high, inside_sorted))


def limit(name: str, n: int, d: int, times: dict[str, float]) -> str:
    """Which part of the machine a kernel needs most, and how near it comes to the least time it could take."""
    least = dict.fromkeys(("bandwidth", "arithmetic", "comparisons"), 0.0)
    for values, operations, comparisons in work(name, n):
        needs = {
            "bandwidth": values * times["yard:read"] / n,
            "arithmetic": operations * d * times["yard:gemm"] / (2 * 1024**3),
            "comparisons": comparisons * d * times["yard:minimum"] / (512 * 2**15),
        }
        part = max(needs, key=lambda key: needs[key])
        least[part] += needs[part]
    return f"{max(least, key=lambda key: least[key])} {sum(least.values()) / times[name]:4.0%}"


def table(n: int, d: int, times: dict[str, float], memory: dict[str, int | None]) -> None:
    """The lines of one size."""
    mean, size = min(times["torch mean"], times.get(PEERS_MEAN, float("inf"))), 4 * n * d
    print(f"\nn = {n}, d = {d:_}: block {size / 2**20:.0f} MiB; one thread, CPU time, f = {n // 5}")
    yards = (4 * n * d / times["yard:read"] / 1e9, 2 * 1024**3 / times["yard:gemm"] / 1e9)
    print(f"machine: reads {yards[0]:.0f} GB/s, float32 products {yards[1]:.0f} Gflop/s, ", end="")
    print(f"minima {512 * 2**15 / times['yard:minimum'] / 1e9:.1f} G/s")
    print(f"{'kernel':<24}{'ms':>8}{'÷ mean':>8}{'peak':>7}  {'limited by, near':<20}peers: ms, ÷ ours, peak")

    def peak(name: str) -> str:
        extra = memory.get(name)
        return "-" if extra is None else f"{1 + extra / size:.2f}"

    for name in OURS:
        others = "; ".join(
            f"{peer.split()[0] if peer != 'flwr decode' else 'of it decoding'} {times[peer] * 1e3:.0f}, "
            f"{times[peer] / times[name]:.1f}, {peak(peer)}"
            for peer in PEERS.get(name, ())
            if peer in times
        )
        line = f"{name:<24}{times[name] * 1e3:8.1f}{times[name] / mean:8.2f}{peak(name):>7}"
        print(f"{line}  {limit(name, n, d, times):<20}{others}".rstrip())
    if PEERS_MEAN in times:
        print(f"(torch mean in the peers' process: {times[PEERS_MEAN] * 1e3:.1f} ms; ratios: to the faster one)")


def agreement(python: Path, n: int = 21, d: int = 5000) -> None:
    """The largest relative difference between byzfl's vectors and ours where both define the same rule."""
    print(f"\nagreement with the peers (n = {n}, d = {d}; largest difference / largest value; 1e-4 is wanted)")
    with tempfile.TemporaryDirectory() as folder:
        ours = Worker(sys.executable, "worker_ours.py", n, d, folder)
        theirs = Worker(python, "worker_peers.py", n, d, folder)
        for name in [name for name in theirs.names if name.startswith("vector:")]:
            mine = "vector:geometric_median" if name == "vector:geom_median" else name
            a, b = (np.load(worker.ask("vector", key)) for worker, key in ((ours, mine), (theirs, name)))
            difference = np.abs(a - b).max() / np.abs(b).max()
            print(f"  {name.partition(':')[2]:<24}{difference:9.1e}  {'agrees' if difference <= 1e-4 else 'DIFFERS'}")
        ours.close()
        theirs.close()


def usable(python: Path | None) -> Path | None:
    """The peers' interpreter if their worker starts there; None, with a message, otherwise."""
    if python is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            Worker(python, "worker_peers.py", 3, 3, folder).close()
    except RuntimeError as error:
        print(f"peers: skipped, they do not run here: {error}", file=sys.stderr)
        return None
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="20x1600000,100x400000", help="n x d, several with commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-peers", action="store_true", help="ours and Flower's only")
    options = parser.parse_args()
    python = None if options.no_peers else usable(peers.interpreter())
    for size in options.sizes.split(","):
        n, d = (int(part) for part in size.split("x"))
        if n < 4 * (n // 5) + 3:
            parser.error(f"--sizes: Bulyan with f = n/5 needs another n than {n}, for example 15 or 20")
        with tempfile.TemporaryDirectory() as folder:
            scripts = [(sys.executable, "worker_ours.py")] + ([(python, "worker_peers.py")] if python else [])
            workers = [Worker(interpreter, script, n, d, folder) for interpreter, script in scripts]
            times = measured(workers, options.rounds)
            for worker in workers:
                worker.close()
            memory: dict[str, int | None] = {}
            for interpreter, script in scripts:
                worker = Worker(interpreter, script, n, d, folder, **RETURN_MEMORY)
                for name in worker.names:
                    if ":" not in name:
                        memory[name] = worker.ask("memory", name)
                worker.close()
        table(n, d, times, memory)
    if python:
        agreement(python)


if __name__ == "__main__":
    main()
