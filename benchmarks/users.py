"""How long a user waits, by command: seconds, and ratios to another checkout that runs alternately with this one.

    python benchmarks/users.py [--only digits,cifar,demo] [--turns 3] [--rounds 20] [--data DIR] [--against PATH]

    digits  thistle run digits-mix: 60 rounds
    cifar   thistle run rofsl-cifar10: `--rounds` rounds of the paper's settings, with an evaluation every 10
    demo    thistle demo, after the installation: all eight runs

Each command is typed as a person would type it, in a folder of its own: what it takes from the first key to the prompt.
A turn is one command of each checkout, one right after the other, so that both have the same machine; a ratio is the
median of the turns'. Without --data (a folder with cifar10-jpeg.tar.xz and stl10-server.tar.xz) the images of `cifar`
are random: time does not depend on what is in them. The first turn, which fills the caches, does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from benchmarks.round import data_settings, ended_by_signals  # noqa: E402
from thistle.engines.flower_programs import EngineError  # noqa: E402
from thistle.experiments.runfolder import read_json, read_lines  # noqa: E402

EVERY = 10
"""Rounds between two evaluations of `cifar`."""
SERVER_IMAGES = 900


@dataclass(frozen=True)
class Asked:
    """What the command line of this benchmark says."""

    rounds: int
    data: str
    folder: Path
    """For what all turns share."""


Arguments = list[str]
WAITS: dict[str, Callable[[Asked], Arguments]] = {}
"""What people wait for: the arguments of `thistle`, by name. The command writes below `runs/` of its folder."""


def wait(made: Callable[[Asked], Arguments]) -> Callable[[Asked], Arguments]:
    """Enter one of them by its function's name."""
    WAITS[made.__name__] = made
    return made


@wait
def digits(asked: Asked) -> Arguments:
    return ["run", "digits-mix", "--name", "run"]


@wait
def cifar(asked: Asked) -> Arguments:
    settings = {**data_settings(asked.data, asked.folder), "task.server-data": server_data(asked)}
    settings |= {"rounds": asked.rounds, "evaluate.every": EVERY}
    return ["run", "rofsl-cifar10", "--name", "run", *(f"--set={key}={value}" for key, value in settings.items())]


@wait
def demo(asked: Asked) -> Arguments:
    return ["demo"]


def server_data(asked: Asked) -> str:
    """As the preset has it, or as many random images."""
    archive = Path(asked.data).resolve() / "stl10-server.tar.xz"
    if asked.data and archive.is_file():
        return f"folder:{archive}"
    file, rng = asked.folder / "server.npz", np.random.default_rng(1)
    pixels = rng.integers(0, 256, (SERVER_IMAGES, 32, 32, 3), dtype=np.uint8)
    np.savez(file, x_train=pixels, y_train=np.arange(SERVER_IMAGES) % 9)
    return f"npz:{file}"


@dataclass
class Side:
    """A checkout, and what its commands took."""

    name: str
    checkout: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)
    """Of a single run: the server's part of a round by the clients', the median over its rounds."""
    models: dict[str, str] = field(default_factory=dict)

    def turn(self, name: str, arguments: Arguments, counts: bool) -> float:
        """Run it once, in a new folder."""
        environment = {**os.environ, "PYTHONPATH": str(self.checkout)}
        with tempfile.TemporaryDirectory(prefix="users-") as folder:
            started = time.perf_counter()
            command = [sys.executable, "-m", "thistle", *arguments]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            seconds = time.perf_counter() - started
            if done.returncode:
                raise EngineError(f"{self.name}: {name} failed: {(done.stderr or done.stdout).strip()[-400:]}")
            run = Path(folder) / "runs" / "run"
            if counts and (run / "summary.json").is_file():
                self.models[name] = read_json(run / "summary.json")["model_sha256"]
                self.parts.setdefault(name, []).append(server_by_clients(list(read_lines(run / "metrics.jsonl"))))
        if counts:
            self.seconds.setdefault(name, []).append(seconds)
        return seconds


def server_by_clients(lines: list[dict[str, Any]]) -> float:
    """How long the server's part of a round takes beside the clients': median, without rounds that wait for an
    evaluation that was begun in the round before."""
    waiting = {line["round"] + 1 for line in lines if "accuracy" in line}
    plain = [line for line in lines[1:] if line["round"] not in waiting] or lines
    return statistics.median(one["seconds_training"] / one["seconds_clients"] - 1 for one in plain)


def report(sides: list[Side], names: list[str]) -> None:
    """Seconds of each, and the ratios."""
    print(f"\nload average {os.getloadavg()[0]:.1f}; medians, (min … max)")
    for name in names:
        for side in sides:
            taken = side.seconds[name]
            shown = f"{statistics.median(taken):8.1f} s  ({min(taken):.1f} … {max(taken):.1f})"
            parts = side.parts.get(name)
            more = f"  server / clients {statistics.median(parts):.2f}" if parts else ""
            print(f"{name:<8}{side.name:<9}{shown}{more}")
        if len(sides) == 2:
            print(f"{name:<8}{compared(name, *sides)}")


def compared(name: str, ours: Side, theirs: Side) -> str:
    """How much faster ours is, turn by turn, and whether it learnt the same."""
    ratios = [b / a for a, b in zip(ours.seconds[name], theirs.seconds[name], strict=True)]
    same = ""
    if name in ours.models:
        same = "; the same model" if ours.models[name] == theirs.models[name] else "; another model"
    return f"{theirs.name} / {ours.name} {statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}){same}"


def turns(sides: list[Side], names: list[str], asked: Asked, count: int) -> Iterator[str]:
    """All of them, the one that does not count first; says how each went."""
    for number in range(count + 1):
        for name in names:
            arguments = WAITS[name](asked)
            for side in sides:
                seconds = side.turn(name, arguments, counts=number > 0)
                yield f"turn {number}/{count}: {name} {side.name} {seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WAITS), help="which of them, with commas")
    parser.add_argument("--turns", type=int, default=3, help="turns that count")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of cifar")
    parser.add_argument("--data", default=os.environ.get("THISTLE_TEST_DATA", ""), help="folder with CIFAR-10")
    parser.add_argument("--against", type=Path, help="another checkout of Thistle")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in WAITS]:
        parser.error(f"--only {options.only}: {unknown[0]!r} is not one of {', '.join(WAITS)}")
    if options.turns < 1 or options.rounds < 2:
        parser.error("--turns: at least 1; --rounds: at least 2")
    sides = [Side("this", HERE.parent.resolve())]
    if options.against:
        if not (options.against / "thistle" / "__init__.py").is_file():
            parser.error(f"--against {options.against}: no checkout of Thistle: it has no thistle/__init__.py")
        sides.append(Side("against", options.against.resolve()))
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="users-") as folder:
        os.environ.setdefault("THISTLE_CACHE", str(Path(folder) / "cache"))
        asked = Asked(options.rounds, options.data, Path(folder))
        for line in turns(sides, names, asked, options.turns):
            print(line, file=sys.stderr, flush=True)
        report(sides, names)


if __name__ == "__main__":
    main()
