"""How long an empty round of a deployed federation takes: nodes on this machine, a model that trains in no time.

python benchmarks/deploy.py [--nodes 2] [--rounds 10] [--cold]

Times are the server's wait for its clients, and the whole round. CPU seconds are those of all processes that ran for
a message (started by a superexec or forked for it) per message, and of everything per round, the run's start included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from thistle.experiments.runfolder import read_lines

TINY = ("task.train-size=100", "client.epochs=1", "model.name=mlp", "evaluate.every=100", "strategy.name=fedavg")
STARTED = b"Start `flwr-clientapp` process"
"""What Flower's ClientApps say first, in their superexec's log."""


@dataclass
class Measured:
    """One run."""

    clients: list[float]
    whole: list[float]
    messages: int
    messages_cpu: float
    cpu: float
    memory: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cold", action="store_true", help="as thistle deploy local --cold")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thistle-") as folder:
        seen = measure(Path(folder), given.nodes, given.rounds, ["--cold"] if given.cold else [])
    print(f"{given.nodes} nodes, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for what, seconds in (("waiting for clients", seen.clients), ("a round", seen.whole)):
        print(f"seconds {what}:", ", ".join(f"{one:.2f}" for one in seconds), f"(median {median(seconds):.2f})")
    print(f"CPU seconds per message: {seen.messages_cpu / seen.messages:.2f} ({seen.messages} messages)")
    print(f"CPU seconds per round, all processes: {seen.cpu / given.rounds:.2f}")
    print(f"memory at rest: {seen.memory}")


def measure(state: Path, nodes: int, rounds: int, how: list[str]) -> Measured:
    """A run on its own federation."""
    environment = {**os.environ, "THISTLE_STATE": str(state)}
    thistle = [sys.executable, "-m", "thistle", "deploy"]
    log = state / "local.txt"
    with log.open("wb") as file:
        local = subprocess.Popen(
            [*thistle, "local", f"{nodes}", "--clients", f"{nodes}", *how], env=environment, stdout=file, stderr=file
        )
    try:
        expected = [b"nodes are up", *([] if how else [b"warm is up"])]
        while not all(text in log.read_bytes() for text in expected):
            if local.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.5)
        memory = resting(local)
        wanted = [*TINY, f"rounds={rounds}", f"task.clients={nodes}", f"client.per-round={nodes}"]
        settings = [word for setting in wanted for word in ("--set", setting)]
        command = [*thistle, "submit", "digits-clean", "--name", "empty", "--nodes", f"{nodes}", *settings]
        before, all_before = spent(local)
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        after, all_after = spent(local)
        logs = b"".join(path.read_bytes() for path in state.glob("local/node-*/logs/*-superexec.log"))
    finally:
        local.terminate()
        local.wait()
    lines = list(read_lines(state / "local" / "runs" / "empty" / "metrics.jsonl"))
    seconds = [[float(line[name]) for line in lines] for name in ("seconds_clients", "seconds")]
    return Measured(*seconds, logs.count(STARTED), after - before, all_after - all_before, memory)


def spent(local: psutil.Process | subprocess.Popen[bytes]) -> tuple[float, float]:
    """CPU seconds so far: of what ran for messages, and of everything below the command."""
    messages = everything = 0.0
    for process in psutil.Process(local.pid).children(recursive=True):
        times = process.cpu_times()
        own, children = times.user + times.system, times.children_user + times.children_system
        everything += own + (0.0 if process.children() else children)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended, and not yet waited for
            messages += own if starts_clients(process.parent()) else 0.0
        elif starts_clients(process):
            messages += children
    return messages, everything


def starts_clients(process: psutil.Process | None) -> bool:
    """A node's superexec, or the fork server."""
    words = [Path(word).name for word in process.cmdline()] if process is not None else []
    return "fork_server.py" in words or ("flower-superexec" in words and "thistle.deploy.patient" not in words)


def resting(local: psutil.Process | subprocess.Popen[bytes]) -> str:
    """Of each kind of process, in MB (PSS: what is shared counts in parts)."""
    kinds: dict[str, float] = {}
    for process in psutil.Process(local.pid).children():
        words = {Path(word).name for word in process.cmdline()}
        kind = next((name for name in ("fork_server.py", "flower-supernode", "flower-superexec") if name in words), "")
        kinds[kind or "others"] = kinds.get(kind or "others", 0.0) + process.memory_full_info().pss / 1e6
    return ", ".join(f"{kind} {size:.0f} MB" for kind, size in kinds.items())


if __name__ == "__main__":
    main()
