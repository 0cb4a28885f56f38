"""Clients whose weights are honest and whose batch-norm statistics lie: every strategy, every lie.

    python benchmarks/buffers.py [--strategies fedavg,rofsl,…] [--lies …] [--when always] [--full] [--networks]

Ten clients with skewed digits, a small network with batch norm, twenty rounds. One or four of the ten lie about every
batch norm, in round 3 only or in all rounds. Figures are accuracies in percent, means of the last five rounds: of the
run in which nobody lies, of those in which the liars fail to reply whenever they would lie ("absent"), and of those
with lies. The table has a row for each strategy and shows the worst lie; `--full` shows all. `--networks`: a few rounds
of vgg8, resnet18 and fedrbn instead.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

HERE = Path(__file__).parent
sys.path[0:0] = [str(HERE.parent)]

from thistle.client.app import app as client_app  # noqa: E402
from thistle.engines.inline import InlineGrid  # noqa: E402
from thistle.experiments.experiment import Experiment  # noqa: E402
from thistle.experiments.plugins import pin  # noqa: E402
from thistle.experiments.runfolder import read_lines  # noqa: E402
from thistle.protocol.cohort import pack_replies, unpack_replies  # noqa: E402
from thistle.server.app import main as serve  # noqa: E402
from thistle.strategies.registry import strategies  # noqa: E402

LIES: dict[str, tuple[str, float]] = {
    "mean 30": ("running_mean", 30.0),
    "mean 1e3": ("running_mean", 1e3),
    "mean 1e6": ("running_mean", 1e6),
    "variance 0": ("running_var", 0.0),
    "variance 1e-12": ("running_var", 1e-12),
    "variance 1e6": ("running_var", 1e6),
    "counter 2^31": ("num_batches_tracked", 2.0**31),
}
LIARS = {"10 %": 1, "40 %": 4}
WHEN: dict[str, Callable[[int], bool]] = {"once": lambda number: number == 3, "always": lambda number: True}
GROUPS = list(product(WHEN, LIARS))
LAST = 5
KNOWN: dict[bytes, dict[int, Any]] = {}
"""Honest replies to the requests of one strategy's runs."""

SMALL: dict[str, Any] = {
    "rounds": 20,
    "stop.lost-rounds": 0,
    "task.clients": 10,
    "task.train-size": 600,
    "task.partition": "dirichlet-even",
    "task.alpha": 0.3,
    "task.server-size": 100,
    "client.per-round": 10,
    "client.epochs": 1,
    "client.batch-size": 20,
    "client.lr": 0.1,
    "evaluate.every": 1,
    "model.name": "norms:small",
    "runtime.workers": 1,
}


class LyingGrid(InlineGrid):
    """The first clients lie in some rounds, or (no lie) fail in them."""

    def __init__(
        self, experiment: Experiment, liars: int, when: Callable[[int], bool], lie: tuple[str, float] | None
    ) -> None:
        super().__init__(client_app, experiment, experiment.runtime.workers)
        self.liars, self.when, self.lie = liars, when, lie

    def _answer(self, message: Message) -> Message:
        if not message.metadata.message_type.startswith("train"):
            return super()._answer(message)
        replies = self._honest(message)
        lying = self.when(int(message.metadata.group_id))
        for client in set(range(self.liars if lying else 0)) & set(replies):
            honest = replies[client]
            replies[client] = "gone" if isinstance(honest, str) or self.lie is None else self._lying(honest, self.lie)
        return Message(pack_replies(replies.items()), reply_to=message)

    def _honest(self, message: Message) -> dict[int, Any]:
        """What honest clients reply: computed once for each request, as many lies leave the same model behind."""
        keys = sorted(item for item in self._run_config.items() if not item[0].startswith("run."))
        digest = hashlib.sha256(repr(keys).encode())
        for name, record in message.content.items():
            digest.update(name.encode())
            digest.update(b"".join(a.data for a in record.values()) if isinstance(record, ArrayRecord) else b"")
            digest.update(b"" if isinstance(record, ArrayRecord) else repr(sorted(record.items())).encode())
        if (key := digest.digest()) not in KNOWN:
            ids: Any = message.content["cohort"]["ids"]
            KNOWN[key] = dict(unpack_replies(super()._answer(message).content, ids))
        return dict(KNOWN[key])

    def _lying(self, honest: Any, lie: tuple[str, float]) -> RecordDict:
        """The same weights; counters have risen, so that it seems to have used each of FedRBN's sets of statistics."""
        suffix, value = lie
        arrays = dict(honest["arrays"])
        for name, array in arrays.items():
            if name.endswith(suffix):
                arrays[name] = Array(np.full_like(array.numpy(), value))
            elif name.endswith("num_batches_tracked"):
                arrays[name] = Array(np.asarray(array.numpy() + 1))
        return RecordDict({**honest, "arrays": ArrayRecord(arrays)})


def rounds(
    keys: dict[str, Any], liars: int = 0, when: Callable[[int], bool] = WHEN["always"], lie: str | None = None
) -> list[dict[str, Any]]:
    """A run's metrics. The first clients lie in some rounds; without a lie they fail to reply in them."""
    with tempfile.TemporaryDirectory() as folder:
        ours = {} if keys.get("strategy.name", "fedavg").startswith("flwr-") else {"strategy.server-epochs": 1}
        flat = pin({**SMALL, **ours, **keys, "run.out": folder, "run.name": "run"}, [HERE / "networks"])
        experiment = Experiment.of(flat)
        grid = LyingGrid(experiment, liars, when, None if lie is None else LIES[lie])
        serve(grid, Context(1, 1, {}, RecordDict(), dict(experiment.flat())))
        return list(read_lines(Path(folder) / "run" / "metrics.jsonl"))


def accuracy(*what: Any) -> list[float]:
    """Each round's accuracy, in percent."""
    return [100 * line["accuracy"] for line in rounds(*what)]


def final(curve: list[float]) -> float:
    return float(np.mean(curve[-LAST:]))


def measure(strategy: str, full: bool) -> list[str]:
    """One strategy's accuracies: nobody lies; in each group without the liars, and with the worst (or each) lie."""
    KNOWN.clear()
    keys = {"strategy.name": strategy}
    cells = [f"{final(accuracy(keys)):.1f}"]
    for when, share in GROUPS:
        found = {lie: final(accuracy(keys, LIARS[share], WHEN[when], lie)) for lie in LIES}
        without = final(accuracy(keys, LIARS[share], WHEN[when]))
        lies = list(LIES) if full else [min(found, key=found.__getitem__)]
        cells += [f"{without:.1f}", *(f"{found[lie]:.1f}" + ("" if full else f" ({lie})") for lie in lies)]
    return cells


def networks() -> Iterator[list[str]]:
    """Larger networks, and FedRBN's two sets of statistics, of which a liar claims to have used both."""
    few = {"rounds": 6, "task.train-size": 300, "task.partition": "iid", "client.epochs": 2}
    fedrbn = {"client.objective": "fedrbn", "client.steps": 2, "model.name": "norms:small2d"}
    chosen: dict[str, tuple[dict[str, Any], int]] = {
        "vgg8": ({**few, "model.name": "vgg8"}, 4),
        "resnet18": ({**few, "model.name": "resnet18"}, 4),
        "fedrbn, all clients adversarial": (fedrbn, 4),
        "fedrbn, clients 7 to 9 adversarial": ({**fedrbn, "client.adversarial-clients": "7-9"}, 1),
    }
    for name, (keys, liars) in chosen.items():
        KNOWN.clear()
        without = accuracy(keys, liars)[-1]
        for lie in ("mean 1e6", "variance 1e6"):
            change = accuracy(keys, liars, WHEN["always"], lie)[-1] - without
            yield [name, f"{10 * liars} %", lie, f"{without:.1f}", f"{change:+.1f}"]


def heading(full: bool) -> list[str]:
    shown = list(LIES) if full else ["worst lie"]
    return ["nobody lies", *(text for when, share in GROUPS for text in (f"{share} {when}: absent", *shown))]


def write_row(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a Markdown table, row by row as they are ready."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default=",".join(strategies()), help="names, separated by commas")
    parser.add_argument("--lies", default=",".join(LIES), help="some of the lies, separated by commas")
    parser.add_argument("--when", choices=list(WHEN), help="only once, or only always")
    parser.add_argument("--full", action="store_true", help="show every lie")
    parser.add_argument("--networks", action="store_true", help="vgg8, resnet18 and fedrbn instead")
    options = parser.parse_args()
    for lie in set(LIES) - set(options.lies.split(",")):
        del LIES[lie]
    GROUPS[:] = [group for group in GROUPS if options.when in (None, group[0])]
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if options.networks:
        titles, rows = ["network", "liars", "lie", "without them", "with their lies"], networks()
    else:
        titles = ["strategy", *heading(options.full)]
        rows = ([name, *measure(name, options.full)] for name in options.strategies.split(","))
    write_row(titles)
    write_row(["---"] * len(titles))
    for row in rows:
        write_row(row)


if __name__ == "__main__":
    main()
