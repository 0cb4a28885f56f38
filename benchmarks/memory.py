"""The memory of one round by its number of clients: all processes of a run, at the moment when they hold the most.

    python benchmarks/memory.py [--clients 100,200] [--strategies fedavg,rofsl] [--engine ray] [--against PATH]

CIFAR CNN of 545 098 parameters (2.18 MB per reply), all clients in every round, three rounds, two workers. A client
trains on two random images: a reply is as large as any other, and training needs the memory of one batch only. Memory
is the sum of PSS over the command and its descendants when it is highest, in MB; it is looked at five times per second.
`per reply`: what an additional client costs, as a multiple of its reply, since the checkout's last line. `--against`:
another checkout, measured in turn with this one; the hash shows that both give the same model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tomli_w

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from benchmarks.round import ended_by_signals  # noqa: E402
from thistle.engines.flower_programs import EngineError  # noqa: E402
from thistle.experiments.runfolder import nest, read_json, read_lines  # noqa: E402

REPLY = 4 * 545_098
"""Bytes."""
IMAGES, ROUNDS, WORKERS, LOOK = 2, 3, 2, 0.2
KINDS = ("command", "server", "workers", "ray")


def write_images(file: Path, clients: int) -> None:
    """Random ones; the server's own for strategies that need some."""
    rng, sizes = np.random.default_rng(0), {"train": IMAGES * clients, "test": 200}
    pixels = {f"x_{part}": rng.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8) for part, size in sizes.items()}
    labels = {f"y_{part}": np.arange(size) % 10 for part, size in sizes.items()}
    np.savez(file, **pixels, **labels)  # type: ignore[arg-type]


def experiment(strategy: str, clients: int) -> dict[str, Any]:
    return {
        "rounds": ROUNDS,
        "stop.lost-rounds": 0,
        "task.name": "npz:noise.npz",
        "task.clients": clients,
        "task.partition": "iid",
        "task.server-data": "holdout:20" if strategy == "rofsl" else "none",
        "model.name": "cnn-cifar",
        "client.per-round": clients,
        "client.epochs": 1,
        "client.batch-size": IMAGES,
        "client.lr": 0.01,
        "strategy.name": strategy,
        "evaluate.every": ROUNDS,
        "runtime.workers": WORKERS,
    }


def measure(checkout: Path, strategy: str, clients: int, engine: str) -> Counter[str]:
    """Bytes by kind of process, at the moment when they were highest together; prints the model's hash."""
    most: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        write_images(folder / "noise.npz", clients + 20)
        (folder / "memory.toml").write_text(tomli_w.dumps(nest(experiment(strategy, clients))), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(checkout), "THISTLE_CACHE": str(folder / "cache")}
        command = [sys.executable, "-m", "thistle", "run", "memory.toml", "--engine", engine]
        with open(folder / "said", "wb") as said:
            child = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
            try:
                while child.poll() is None:
                    most = max(most, memory_of(child.pid), key=lambda found: found.total())
                    time.sleep(LOOK)
            finally:
                child.terminate()
                child.wait()
        lines = list(read_lines(folder / "runs" / "memory" / "metrics.jsonl"))
        if child.returncode or any(line["failed"] + line["rejected"] for line in lines):
            raise EngineError(f"exit code {child.returncode}: {(folder / 'said').read_text()}")
        print(read_json(folder / "runs" / "memory" / "summary.json")["model_sha256"][:12], end="  ", flush=True)
    return most


def memory_of(pid: int) -> Counter[str]:
    """By kind of process, of this one and its descendants; what is shared counts in parts."""
    found: Counter[str] = Counter()
    with suppress(psutil.Error):
        for process in (head := psutil.Process(pid), *head.children(recursive=True)):
            with suppress(psutil.Error):
                found["command" if process == head else kind(process)] += process.memory_full_info().pss
    return found


def kind(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    if "ClientAppActor" in line:
        return "workers"
    return "server" if "thistle." in line and "import" in line else "ray"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="100,200", help="per round, rising, with commas")
    parser.add_argument("--strategies", default="fedavg,rofsl")
    parser.add_argument("--engine", default="ray", choices=("ray", "inline"))
    parser.add_argument("--against", type=Path, help="another checkout")
    options = parser.parse_args()
    checkouts = [HERE.parent, *([options.against.resolve()] if options.against else [])]
    print(f"{'model':<14}{'checkout':<20}{'strategy':<12}{'clients':>8}", *(f"{kind:>9}" for kind in KINDS), end="")
    print(f"{'all, MB':>10}{'per reply':>11}")
    before: dict[tuple[Path, str], tuple[int, int]] = {}
    with ended_by_signals():
        for strategy in options.strategies.split(","):
            for clients in map(int, options.clients.split(",")):
                for checkout in checkouts:
                    found = measure(checkout, strategy, clients, options.engine)
                    fewer, less = before.get((checkout, strategy), (0, 0))
                    each = f"{(found.total() - less) / (clients - fewer) / REPLY:11.2f}" if fewer else ""
                    before[checkout, strategy] = clients, found.total()
                    print(f"{checkout.name:<20}{strategy:<12}{clients:8d}", end="")
                    print(*(f"{found[kind] / 1e6:9.0f}" for kind in KINDS), f"{found.total() / 1e6:9.0f}{each}")


if __name__ == "__main__":
    main()
