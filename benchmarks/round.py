"""One round of a CIFAR-CNN federation, by Thistle and by others, in one run: seconds per round, ratios, memory.

    python benchmarks/round.py [--rounds 7] [--only a,b] [--data DIR]

The round: 1 000 clients, 20 train 50 images each, 2 epochs, batches of 25; two processes of one thread.

    a  bare     our training function in two processes, shared memory, nothing else
    b  thistle  the product: a Ray run with flwr-fedavg and two workers
    c  stock    a Flower app as its PyTorch quickstart has it, a SuperNode a client
    d  pfl      pfl-research's FedAvg and simulated backend, two processes joined by gloo
    e  pfl-last the same with its model and images channels last, as ours are: the framework alone differs

They take turns: in each of `--rounds` turns, each computes one round that does not count and one that does, while all
others hold (at a pipe, or stopped by SIGSTOP). Without --data (or THISTLE_TEST_DATA) the images are random: time does
not depend on what is in them. Memory is the sum of PSS; pages of libraries that several contenders have mapped are
shared out between them, so `--only b` shows more.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from benchmarks import peers  # noqa: E402
from benchmarks.round_contenders import Contender, Flowered, Piped, Sample, submit_app  # noqa: E402
from benchmarks.round_plan import (  # noqa: E402
    BATCH,
    CLIENTS,
    EPOCHS,
    IMAGES,
    PER_ROUND,
    RATE,
    SHAPE,
    WORKERS,
    save_arrays,
)
from thistle.engines.flower_programs import EngineError, free_port  # noqa: E402
from thistle.experiments.errors import UserError  # noqa: E402
from thistle.experiments.experiment import Experiment  # noqa: E402

ENDLESS = 100_000
RATIOS = (("b", "a", 1.3, "at most"), ("c", "b", 2.0, "at least"), ("b", "d", 1.05, "at most"), ("b", "e", 0.0, ""))
LETTERS = "abcde"


def data_settings(data: str, folder: Path) -> dict[str, Any]:
    """Which task: CIFAR-10 where there is some, otherwise noise of the same size (cached in `folder`, too)."""
    if data:
        archive = Path(data).resolve() / "cifar10-jpeg.tar.xz"
        if archive.is_file():
            return {"task.name": f"folder:{archive}"}
        return {"task.name": "cifar10", "task.data-dir": str(Path(data).resolve())}
    os.environ["THISTLE_CACHE"] = str(folder / "cache")
    rng, file = np.random.default_rng(0), folder / "noise.npz"
    sizes = {"train": CLIENTS * IMAGES, "test": 1000}
    pixels = {f"x_{k}": rng.integers(0, 256, (n, *SHAPE), dtype=np.uint8) for k, n in sizes.items()}
    labels = {f"y_{k}": rng.integers(0, 10, n) for k, n in sizes.items()}
    np.savez(file, **pixels, **labels)  # type: ignore[arg-type]
    return {"task.name": f"npz:{file}"}


def thistle_experiment(data: dict[str, Any], folder: Path) -> Experiment:
    return Experiment.of(
        {
            **data,
            "run.out": str(folder),
            "run.name": "thistle",
            "rounds": ENDLESS,
            "task.clients": CLIENTS,
            "task.partition": "iid",
            "task.train-size": CLIENTS * IMAGES,
            "model.name": "cnn-cifar",
            "model.dropout": False,
            "client.per-round": PER_ROUND,
            "client.epochs": EPOCHS,
            "client.batch-size": BATCH,
            "client.lr": RATE,
            "client.weight-decay": 0.0,
            "strategy.name": "flwr-fedavg",
            "evaluate.every": ENDLESS,
            "runtime.workers": WORKERS,
        }
    )


def share_out(experiment: Experiment, folder: Path) -> None:
    """The same images in the same shares for those that cannot read Thistle's tasks."""
    from thistle.tasks.task import prepare_task

    task = prepare_task(experiment.task, experiment.seed, server_data=False)
    shares = np.stack([task.partition.indices(client) for client in range(CLIENTS)])
    save_arrays(folder, pixels=task.dataset.train.pixels, labels=task.dataset.train.labels, shares=shares)


class Contest:
    """The contenders, and what was measured of them."""

    def __init__(self) -> None:
        self.contenders: dict[str, Contender] = {}
        self.samples: dict[str, list[Sample]] = {}

    def breathe(self) -> None:
        for contender in self.contenders.values():
            contender.breathe()

    def enter(self, letter: str, contender: Contender, stack: ExitStack) -> None:
        """One that does not come to the start is left out, with a message."""
        print(f"starting {contender.name}", file=sys.stderr)
        stack.callback(contender.close)
        try:
            contender.start()
        except EngineError as error:
            print(f"{contender.name}: left out: {error}", file=sys.stderr)
            contender.close()
            return
        self.contenders[letter] = contender
        self.samples[letter] = []

    def run(self, rounds: int) -> None:
        for number in range(1, rounds + 1):
            shown = []
            for letter in sorted(self.contenders):
                self.breathe()
                sample = self.contenders[letter].turn()
                if sample.line.get("accepted", PER_ROUND) != PER_ROUND:
                    raise EngineError(f"{self.contenders[letter].name}: not all clients trained: {dict(sample.line)}")
                self.samples[letter].append(sample)
                shown.append(f"{self.contenders[letter].name} {sample.seconds:.2f}")
            print(f"turn {number}/{rounds}: {', '.join(shown)} s", file=sys.stderr)

    def median(self, letter: str) -> float:
        return statistics.median(sample.seconds for sample in self.samples[letter])

    def report(self) -> None:
        print(f"\n{CLIENTS} clients, {PER_ROUND} a round, {IMAGES} images, {EPOCHS} epochs, batch {BATCH}")
        print(f"{'':<12}{'s/round':>9}{'min':>8}{'max':>8}{'CPU s':>8}{'PSS MB':>9}{'processes':>11}")
        for letter in sorted(self.contenders):
            contender, samples = self.contenders[letter], self.samples[letter]
            seconds = [sample.seconds for sample in samples]
            cpu = statistics.median(sum(sample.cpu.values()) for sample in samples)
            figures = f"{self.median(letter):9.3f}{min(seconds):8.3f}{max(seconds):8.3f}{cpu:8.2f}"
            memory = f"{contender.pss() / 1e6:9.0f}{len(contender.processes()):11d}"
            print(f"{letter} {contender.name:<10}{figures}{memory}")
        print()
        for above, below, wanted, how in RATIOS:
            if above in self.contenders and below in self.contenders:
                ratio = self.median(above) / self.median(below)
                pairs = [a.seconds / b.seconds for a, b in zip(self.samples[above], self.samples[below], strict=True)]
                names = f"{self.contenders[above].name} / {self.contenders[below].name}"
                goal = f"  (wanted: {how} {wanted})" if how else ""
                print(f"{names:<20}{ratio:6.2f}  turn by turn {min(pairs):.2f} … {max(pairs):.2f}{goal}")
        if "b" in self.contenders:
            self.report_split(self.samples["b"])

    def report_split(self, samples: list[Sample]) -> None:
        """Where Thistle's round goes, by its own records and by its processes' CPU time."""

        def middle(values: Iterator[float]) -> str:
            return f"{statistics.median(values):.3f}"

        print("\nthistle's round (medians): its own records")
        fields = [key for key in samples[0].line if key.startswith("seconds")]
        for key in fields:
            print(f"  {key:<24}{middle(s.line[key] for s in samples)}")
        between = middle(s.seconds - s.line["seconds"] for s in samples)
        print(f"  {'between rounds':<24}{between}  (lines and checkpoint written)")
        print("CPU seconds of its processes")
        for kind in sorted({kind for sample in samples for kind in sample.cpu}):
            print(f"  {kind:<24}{middle(s.cpu[kind] for s in samples)}")


def enter_all(contest: Contest, letters: str, data: dict[str, Any], folder: Path, stack: ExitStack) -> None:
    """First those that can wait as long as one likes."""
    experiment = thistle_experiment(data, folder)
    share_out(experiment, folder)
    if "a" in letters:
        command = [sys.executable, str(HERE / "round_bare.py"), str(folder)]
        contest.enter("a", Piped("bare", command), stack)
    python = peers.interpreter() if set("de") & set(letters) else None
    for letter, name, layout in (("d", "pfl", "plain"), ("e", "pfl-last", "channels-last")):
        if python and letter in letters:
            command = [str(python), str(HERE / "round_pfl.py"), str(folder), layout]
            contest.enter(letter, Piped(name, command, ranks()), stack)
    if "c" in letters:
        contest.enter("c", stock(folder, contest), stack)
    if "b" in letters:
        lines = folder / "thistle" / "metrics.jsonl"
        contender = Flowered("thistle", lines, lambda link: link.submit(experiment), contest.breathe)
        contest.enter("b", contender, stack)


def stock(folder: Path, contest: Contest) -> Flowered:
    lines = folder / "stock.jsonl"
    config = {
        "rounds": ENDLESS,
        "fraction-train": PER_ROUND / CLIENTS,
        "local-epochs": EPOCHS,
        "learning-rate": RATE,
        "batch-size": BATCH,
        "data": str(folder),
        "stamps": str(lines),
    }
    app = HERE / "stock" / "train"
    return Flowered("stock", lines, lambda link: submit_app(link, app, config, CLIENTS), contest.breathe)


def ranks() -> list[dict[str, str]]:
    """What torchrun would set for each of its workers: pfl's torch.distributed backend looks for it."""
    port = str(free_port())
    common = {"TORCHELASTIC_RUN_ID": "round", "WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(WORKERS)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PFL_PYTORCH_DEVICE": "cpu"}
    return [{**common, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORKERS)]


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: everything that was started is ended, too."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (UserError, EngineError) as error:
        sys.exit(str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of each contender")
    parser.add_argument("--only", default=",".join(LETTERS), help="contenders by letter, with commas")
    parser.add_argument("--data", default=os.environ.get("THISTLE_TEST_DATA", ""), help="folder with CIFAR-10")
    options = parser.parse_args()
    letters = options.only.replace(",", "")
    if not letters or set(letters) - set(LETTERS):
        parser.error(f"--only {options.only}: the contenders are {', '.join(LETTERS)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="round-") as name, ExitStack() as stack:
        contest = Contest()
        enter_all(contest, letters, data_settings(options.data, Path(name)), Path(name), stack)
        contest.run(options.rounds)
        contest.report()


if __name__ == "__main__":
    main()
