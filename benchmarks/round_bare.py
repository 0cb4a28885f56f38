"""The bare loop: two processes, one network each, our training function, shared memory. No framework at all.

A child of round.py: `python benchmarks/round_bare.py FOLDER`, with the arrays of round_plan in FOLDER.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path[0:0] = [str(Path(__file__).parents[1])]

from benchmarks.round_plan import (  # noqa: E402
    BATCH,
    CLASSES,
    CLIENTS,
    EPOCHS,
    PER_ROUND,
    RATE,
    SHAPE,
    WORKERS,
    Gate,
    load_arrays,
)
from thistle.experiments import settings  # noqa: E402
from thistle.experiments.randomness import torch_rng  # noqa: E402
from thistle.tasks.dataset import Images  # noqa: E402
from thistle.tasks.freed_memory import keep_freed_memory  # noqa: E402
from thistle.tasks.models import build_model  # noqa: E402
from thistle.tasks.training import Recipe, to_tensors, train  # noqa: E402

RECIPE = Recipe(epochs=EPOCHS, batch_size=BATCH, lr=RATE)


def network() -> nn.Module:
    return build_model(settings.Model(name="cnn-cifar", dropout=False), SHAPE, CLASSES, 0)


def work(folder: Path, pipe: Connection, sent: Tensor, results: Tensor) -> None:
    """A worker: for each (row, client) of a round, train from `sent` and leave the model in that row."""
    torch.set_num_threads(1)
    keep_freed_memory()
    pixels, labels, shares = load_arrays(folder)
    model, cpu = network(), torch.device("cpu")
    parameters = list(model.parameters())
    pipe.send(True)
    while True:
        try:
            number, jobs = pipe.recv()
        except EOFError:
            return
        for row, client in jobs:
            _load(parameters, sent)
            images = to_tensors(Images(pixels[shares[client]], labels[shares[client]]), cpu)
            train(model, *images, RECIPE, torch_rng(0, "batches", number, client))
            _store(parameters, results[row])
        pipe.send(True)


@torch.no_grad()
def _load(parameters: list[nn.Parameter], vector: Tensor) -> None:
    for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view(parameter.shape))


@torch.no_grad()
def _store(parameters: list[nn.Parameter], vector: Tensor) -> None:
    for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
        part.view(parameter.shape).copy_(parameter)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    keep_freed_memory()
    gate = Gate()
    parameters = list(network().parameters())
    sent = torch.empty(sum(parameter.numel() for parameter in parameters)).share_memory_()
    _store(parameters, sent)
    results = torch.empty(PER_ROUND, len(sent)).share_memory_()
    context = torch.multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(WORKERS):
        ours, theirs = multiprocessing.Pipe()
        context.Process(target=work, args=(folder, theirs, sent, results), daemon=True).start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    dice, number = random.Random(0), 0

    def one_round() -> None:
        nonlocal number
        number += 1
        jobs = list(enumerate(dice.sample(range(CLIENTS), PER_ROUND)))
        for index, pipe in enumerate(pipes):
            pipe.send((number, jobs[index::WORKERS]))
        for pipe in pipes:
            pipe.recv()
        sent.copy_(results.mean(0))  # all hold as many images: FedAvg's weights are equal

    gate.serve(one_round)


if __name__ == "__main__":
    main()
