"""Run folders and sweeps in the real format, without training: for tests of what reads them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, write_json
from thistle.protocol.verdict import Kind, Verdict
from thistle.report.live import make_server

HONEST: tuple[tuple[Kind, float], ...] = (("accepted", 0.95), ("filtered", 0.04), ("failed", 0.01))
MALICIOUS: tuple[tuple[Kind, float], ...] = (("accepted", 0.2), ("filtered", 0.7), ("rejected", 0.1))


def write_run(
    path: Path,
    rounds: int = 20,
    clients: int = 12,
    malicious: int = 4,
    level: float = 0.9,
    robust: bool = False,
    finished: bool = True,
    **keys: Any,
) -> RunFolder:
    """A run in which every client replies in every round; the first ones attack. Accuracy tends to `level`."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    about = {"rounds": rounds, "task.clients": clients, "client.per-round": clients, "run.name": path.name}
    attack = {"attack.kind": "sign-flip", "attack.fraction": malicious / clients} if malicious else {}
    experiment = Experiment.of({**about, **attack, **keys})
    folder.save_experiment(experiment)
    rng = np.random.default_rng(experiment.seed)
    lines = []
    with folder.verdicts.open("w") as file:
        for number in range(1, rounds + 1):
            verdicts = _verdicts(rng, clients, malicious)
            file.writelines(json.dumps(verdict.line(number)) + "\n" for verdict in verdicts)
            lines.append(_line(number, verdicts, malicious, level, robust))
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.set_status("running")
    if finished:
        finish(folder, lines, malicious)
    return folder


def write_deployed_run(path: Path, **more: Any) -> RunFolder:
    """As real nodes leave it: who attacked is not known, during the run and afterwards."""
    folder = write_run(path, malicious=0, **more)
    lines = [{**json.loads(line), "detection": None} for line in folder.metrics.read_text().splitlines()]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(folder.truth, {"malicious": None})
    return folder


def finish(folder: RunFolder, lines: list[dict[str, Any]], malicious: int) -> None:
    final = {"final_robust": lines[-1]["robust"]} if "robust" in lines[-1] else {}
    accuracy = lines[-1]["accuracy"]
    write_json(folder.summary, {"final_accuracy": accuracy, "max_accuracy": accuracy, **final})
    write_json(folder.truth, {"malicious": list(range(malicious)), "kind": "sign-flip", "start": 1, "stop": 0})
    folder.set_status("finished")


def _verdicts(rng: np.random.Generator, clients: int, malicious: int) -> list[Verdict]:
    made = []
    scores = rng.normal(size=clients)
    draws = rng.random(clients)
    for client in range(clients):
        table = MALICIOUS if client < malicious else HONEST
        kind = next((kind for kind, upto in _upto(table) if draws[client] < upto), table[-1][0])
        step = {"filtered": "loss", "rejected": "guard"}.get(kind, "")
        score = scores[client] + (3.0 if client < malicious else 0.0)
        reason = "too long" if kind == "rejected" else ""
        made.append(Verdict(client, kind, step, score, 1.5, 1 / clients, reason=reason))
    return made


def _upto(table: tuple[tuple[Kind, float], ...]) -> list[tuple[Kind, float]]:
    ends = np.cumsum([share for _, share in table])
    return [(kind, float(end)) for (kind, _), end in zip(table, ends, strict=True)]


def _line(number: int, verdicts: list[Verdict], malicious: int, level: float, robust: bool) -> dict[str, Any]:
    kept = [v.verdict == "accepted" for v in verdicts]
    parts = {"filter": ("filtered",), "whole": ("filtered", "rejected")}
    accuracy = level * (1 - 0.8 / number**0.7)
    return {
        "round": number,
        "lr": 0.1,
        "bytes_down": 1000 * len(verdicts),
        "bytes_up": 1000 * sum(kept),
        "train_loss": 2.0 / number,
        **{kind: sum(v.verdict == kind for v in verdicts) for kind in ("accepted", "filtered", "rejected", "failed")},
        "detection": {
            name: _counts([v.verdict in kinds for v in verdicts], kept, malicious) for name, kinds in parts.items()
        },
        "seconds_clients": 1.0,
        "seconds": 1.5,
        "accuracy": accuracy,
        "loss": 2.2 - accuracy,
        **({"robust": {"natural": accuracy, "fgsm": 0.7 * accuracy, "pgd20": 0.5 * accuracy}} if robust else {}),
    }


def _counts(out: list[bool], kept: list[bool], malicious: int) -> dict[str, int]:
    return {
        "true_positive": sum(out[:malicious]),
        "false_positive": sum(out[malicious:]),
        "false_negative": sum(kept[:malicious]),
        "true_negative": sum(kept[malicious:]),
    }


AXES: dict[str, list[Any]] = {
    "strategy.name": ["fedavg", "rfa", "rofsl"],
    "attack.kind": ["sign-flip", "label-flip"],
    "attack.fraction": [0.1, 0.3, 0.5],
    "task.alpha": [0.1, 1.0],
}
LOSS = {"fedavg": 1.4, "rfa": 0.7, "rofsl": 0.25}
"""How much of its accuracy a strategy loses for each attacker."""


def write_sweep(folder: Path, seeds: int = 3, axes: dict[str, list[Any]] = AXES, unfinished: int = 1) -> Path:
    """A sweep whose last cells are not finished."""
    cells = []
    combinations = [{}]
    for key, values in axes.items():
        combinations = [{**one, key: value} for one in combinations for value in values]
    for one in combinations:
        for seed in range(seeds):
            cells.append({"id": f"{len(cells):08x}", "folder": f"cells/{len(cells):08x}", "axes": one, "seed": seed})
    for number, cell in enumerate(cells):
        own = cell["axes"]
        worse = 1 + 0.3 * (own.get("attack.kind") == "label-flip") + 0.4 * (own.get("task.alpha") == 0.1)
        noise = np.random.default_rng(number).normal() * 0.04
        level = max(0.1, 0.9 - LOSS[own["strategy.name"]] * own.get("attack.fraction", 0.3) * worse + noise)
        keys = {**own, "seed": cell["seed"]}
        share = keys.pop("attack.fraction", 0.3)
        ended = number < len(cells) - unfinished
        run = folder / cell["folder"]
        write_run(run, rounds=8, clients=10, malicious=round(10 * share), level=level, finished=ended, **keys)
    write_json(folder / "sweep.json", {"name": "table", "axes": axes, "seeds": list(range(seeds)), "cells": cells})
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`thistle watch` on a free port of this machine, in a thread; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server([folder], "127.0.0.1")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
