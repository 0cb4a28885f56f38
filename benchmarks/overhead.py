"""What a framework costs by itself: clients that echo a model of 25 000 floats, all of them in every round.

    python benchmarks/overhead.py [--sizes 100,200,500,1000,2000] [--stock-sizes 100,1000]

Stock Flower: one SuperNode per client, FedAvg, its own simulation. Thistle: the product as it is (two Ray workers,
cohort grid, guard, its own FedAvg, records, checkpoint), only that its clients echo. Seconds from the end of one round
to the end of the next, in real runs, one after the other; Ray is up before the clock starts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from benchmarks.round import ENDLESS, ended_by_signals  # noqa: E402
from benchmarks.round_contenders import Flowered, submit_app  # noqa: E402
from benchmarks.superlink import APP, PrivateSuperLink  # noqa: E402
from thistle.engines.flower_programs import EngineError  # noqa: E402
from thistle.engines.staging import stage_app  # noqa: E402
from thistle.experiments.experiment import Experiment  # noqa: E402
from thistle.experiments.runfolder import read_lines  # noqa: E402

FLOATS = 25_000
MANY = 200
"""Stock Flower's round takes a second or two with this many clients, and minutes with more."""
WANTED = (1000, 50)


def measure(name: str, lines: Path, submit: Callable[[PrivateSuperLink], str], rounds: int, first: int) -> list[float]:
    """Seconds of `rounds` rounds, from the line `first` on."""
    run = Flowered(name, lines, submit, lambda: None)
    try:
        run.begin()
        times = [run.wait_for(first + number) for number in range(rounds + 1)]
    finally:
        run.close()
    return [later - earlier for earlier, later in pairwise(times)]


def stock(clients: int, rounds: int, folder: Path) -> list[float]:
    """Its first line says that the first round begins."""
    lines = folder / f"stock-{clients}.jsonl"
    config = {"rounds": ENDLESS, "floats": FLOATS, "stamps": str(lines)}
    app = HERE / "stock" / "echo"
    return measure("stock", lines, lambda link: submit_app(link, app, config, clients), rounds, first=1)


def thistle(clients: int, rounds: int, folder: Path) -> list[float]:
    """Its first line says that the first round, which warms up, is over."""
    experiment = echo_experiment(clients, folder)
    lines = folder / experiment.run.name / "metrics.jsonl"

    def submit(link: PrivateSuperLink) -> str:
        link.app = staged(link.home / APP)
        return link.submit(experiment)

    seconds = measure("thistle", lines, submit, rounds, first=2)
    for line in read_lines(lines):
        if line["accepted"] != clients:
            raise EngineError(f"thistle: not all echoes were accepted: {line}")
    return seconds


def staged(target: Path) -> Path:
    """The product's app, its clients exchanged, and with a model more."""
    app = stage_app(target)
    for file, folder in (("model.py", "tasks/models"), ("client.py", "client")):
        shutil.copy(HERE / "echo" / file, app / "thistle" / folder / "echo.py")
    project = app / "pyproject.toml"
    text = project.read_text(encoding="utf-8").replace("client.app:app", "client.echo:app")
    project.write_text(text, encoding="utf-8")
    return app


def echo_experiment(clients: int, folder: Path) -> Experiment:
    images = folder / "images.npz"
    if not images.is_file():
        pixels, labels = np.zeros((100, 50, 50), np.uint8), np.arange(100) % 10
        np.savez(images, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    return Experiment.of(
        {
            "run.out": str(folder),
            "run.name": f"thistle-{clients}",
            "rounds": ENDLESS,
            "task.name": f"npz:{images}",
            "task.clients": clients,
            "task.partition": "resample",
            "task.client-size": 10,
            "model.name": "echo",
            "client.per-round": clients,
            "strategy.name": "fedavg",
            "evaluate.every": ENDLESS,
            "runtime.workers": 2,
        }
    )


def report(ours: dict[int, list[float]], theirs: dict[int, list[float]]) -> None:
    print(f"\nechoes of {FLOATS} floats: seconds per round, median (min … max) of n")
    print(f"{'clients':>8}  {'thistle':<30}{'ms/client':>10}  {'stock':<30}{'stock/thistle':>14}")

    def shown(seconds: list[float] | None) -> str:
        if not seconds:
            return "-"
        return f"{statistics.median(seconds):.3f} ({min(seconds):.3f} … {max(seconds):.3f}) of {len(seconds)}"

    for clients in sorted({*ours, *theirs}):
        mine, other = ours.get(clients), theirs.get(clients)
        each = f"{statistics.median(mine) / clients * 1e3:.2f}" if mine else "-"
        ratio = f"{statistics.median(other) / statistics.median(mine):.1f}" if mine and other else "-"
        goal = f"  (wanted: at least {WANTED[1]})" if clients == WANTED[0] and mine and other else ""
        print(f"{clients:>8}  {shown(mine):<30}{each:>10}  {shown(other):<30}{ratio:>14}{goal}")
    if len(ours) > 2:
        slope, fixed = np.polyfit(list(ours), [statistics.median(seconds) for seconds in ours.values()], 1)
        print(f"thistle, a straight line through them: {fixed:.3f} s + {slope * 1e3:.3f} ms per client")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100,200,500,1000,2000", help="Thistle's clients, with commas")
    parser.add_argument("--stock-sizes", default="100,1000", help="stock Flower's; empty: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stock-rounds", type=int, default=1, help=f"of stock Flower with more than {MANY} clients")
    options = parser.parse_args()
    sizes, stock_sizes = ([int(n) for n in text.split(",") if n] for text in (options.sizes, options.stock_sizes))
    ours: dict[int, list[float]] = {}
    theirs: dict[int, list[float]] = {}
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="overhead-") as name:
        os.environ["THISTLE_CACHE"] = str(Path(name) / "cache")
        for clients in sorted({*sizes, *stock_sizes}):
            if clients in sizes:
                print(f"thistle, {clients} clients", file=sys.stderr)
                ours[clients] = thistle(clients, options.rounds, Path(name))
            if clients in stock_sizes:
                print(f"stock, {clients} clients", file=sys.stderr)
                rounds = options.stock_rounds if clients > MANY else options.rounds
                theirs[clients] = stock(clients, rounds, Path(name))
        report(ours, theirs)


if __name__ == "__main__":
    main()
