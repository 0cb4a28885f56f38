"""What CalFAT's bookkeeping costs: one local epoch against the same number of bare forward and backward passes.

A batch of CalFAT with K steps is one forward pass for the target, K forward passes with a backward pass to the images,
and one training step. The bare loop does exactly that on the same images and nothing else: no signs, no projection,
no softmax of a prior, no switching of modes. Both are timed in turn, after a warm-up; medians, one thread.

    python benchmarks/calfat.py [--rounds 15] [--task digits|cifar]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thistle.attacks.evasion.engine import Budget
from thistle.attacks.training.calibrations import log_prior, make_views
from thistle.attacks.training.loss import CalibratedLoss
from thistle.attacks.training.objectives import Setting, adversarial_ratio
from thistle.experiments.settings import Client, Network
from thistle.tasks.models import build_model, predict
from thistle.tasks.training import Recipe, batches, train

TASKS = {
    "digits": (Network(name="cnn-cifar", dropout=False), (1, 8, 8), 300, 32, 5),
    "cifar": (Network(name="cnn-calfat"), (3, 32, 32), 128, 64, 5),
}
"""Network, image shape, images per client, batch size, steps."""


def calfat_epoch(network: nn.Module, pixels: Tensor, labels: Tensor, size: int, steps: int) -> None:
    client = Client(objective="ckl", calibration="calfat", steps=steps)
    views = make_views(client, log_prior(labels, 10, client.prior_delta))
    setting = Setting(Budget(client.epsilon, client.step, steps), torch.Generator().manual_seed(0))
    loss = CalibratedLoss(client, views, setting, adversarial_ratio(client))
    train(network, pixels, labels, Recipe(1, size, 1e-4, momentum=0.9), torch.Generator().manual_seed(0), loss)


def bare_epoch(network: nn.Module, pixels: Tensor, labels: Tensor, size: int, steps: int) -> None:
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    for index in batches(len(labels), size, torch.Generator().manual_seed(0)):
        images, targets = pixels[index], labels[index]
        with torch.no_grad():
            predict(network, images)
        for _ in range(steps):
            point = images.detach().requires_grad_(True)
            torch.autograd.grad(cross_entropy(predict(network, point), targets), point)
        optimiser.zero_grad()
        cross_entropy(predict(network, images), targets).backward()
        optimiser.step()


def seconds(epoch: Callable[..., None], *work: object) -> float:
    began = time.process_time()
    epoch(*work)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--task", choices=TASKS, action="append")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.task or TASKS:
        model, shape, count, size, steps = TASKS[name]
        network = build_model(model, shape, 10, 0)
        torch.manual_seed(0)
        pixels = torch.rand(count, *shape).contiguous(memory_format=torch.channels_last)
        work = (network, pixels, torch.randint(10, (count,)), size, steps)
        times: dict[str, list[float]] = {"calfat": [], "bare": []}
        for number in range(chosen.rounds + 2):
            for kind, epoch in (("calfat", calfat_epoch), ("bare", bare_epoch)):
                taken = seconds(epoch, *work)
                if number >= 2:
                    times[kind].append(taken)
        ours, bare = median(times["calfat"]), median(times["bare"])
        print(
            f"{name}: CalFAT {ours * 1e3:.1f} ms, bare passes {bare * 1e3:.1f} ms, ratio {ours / bare:.2f}", flush=True
        )


if __name__ == "__main__":
    main()
