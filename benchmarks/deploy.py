"""How long an empty round of a deployed federation takes: nodes on this machine, a model that trains in no time.

python benchmarks/deploy.py [--nodes 2] [--rounds 6]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from thistle.experiments.runfolder import read_lines

TINY = ("task.train-size=100", "client.epochs=1", "model.name=mlp", "evaluate.every=100", "strategy.name=fedavg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thistle-") as folder:
        seconds = measure(Path(folder), given.nodes, given.rounds)
    print(f"{given.nodes} nodes, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("seconds a round:", ", ".join(f"{one:.1f}" for one in seconds), f"(median {median(seconds):.1f})")


def measure(state: Path, nodes: int, rounds: int) -> list[float]:
    """What the server waits for its clients, round by round."""
    environment = {**os.environ, "THISTLE_STATE": str(state)}
    thistle = [sys.executable, "-m", "thistle", "deploy"]
    log = state / "local.txt"
    with log.open("wb") as file:
        local = subprocess.Popen(
            [*thistle, "local", f"{nodes}", "--clients", f"{nodes}"], env=environment, stdout=file, stderr=file
        )
    try:
        while b"nodes are up" not in log.read_bytes():
            if local.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.5)
        wanted = [*TINY, f"rounds={rounds}", f"task.clients={nodes}", f"client.per-round={nodes}"]
        settings = [word for setting in wanted for word in ("--set", setting)]
        command = [*thistle, "submit", "digits-clean", "--name", "empty", "--nodes", f"{nodes}", *settings]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    finally:
        local.terminate()
        local.wait()
    return [line["seconds_clients"] for line in read_lines(state / "local" / "runs" / "empty" / "metrics.jsonl")]


if __name__ == "__main__":
    main()
