"""How many images a model still gets right under an attack, in total and by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thistle.attacks.evasion.engine import Budget, anywhere, at_rest, craft
from thistle.attacks.evasion.losses import cross_entropy, margin
from thistle.attacks.evasion.table import Evasion, check_autoattack, find
from thistle.experiments.errors import UserError
from thistle.experiments.randomness import torch_rng
from thistle.tasks.dataset import PIXELS, Bounds
from thistle.tasks.models import predict
from thistle.tasks.threads import on_copies

Tick = Callable[[int], None]
"""Called with the number of images that are done since the last call."""
Chunk = tuple[Tensor, Tensor, Tensor | None]


AA_BATCH = 100
"""AutoAttack takes minutes for these; larger batches would show no progress."""


@dataclass(frozen=True)
class Adversary:
    """What test-time attackers may do. `step` None: ε/4."""

    epsilon: float
    step: float | None
    seed: int
    batch_size: int
    bounds: Bounds = PIXELS
    """Of the inputs."""


def survivors(
    model: nn.Module, pixels: Tensor, labels: Tensor, name: str, adversary: Adversary, tick: Tick | None = None
) -> Tensor:
    """Which images the model gets right under the attack of that name (n booleans). Eval mode."""
    with at_rest(model):
        if name == "aa":
            return _autoattack(model, pixels, labels, adversary, tick)
        attack = None if name == "natural" else find(name)

        def right(own: nn.Module, chunk: Chunk) -> Tensor:
            images, targets, start = chunk
            attacked = _attack(own, images, targets, attack, adversary, start) if attack else images
            with torch.inference_mode():
                found = predict(own, attacked).argmax(1) == targets
            if tick:
                tick(len(targets))
            return found

        count = -(-len(labels) // adversary.batch_size)
        return torch.cat(on_copies(right, model, pixels[:1], _chunks(pixels, labels, name, adversary), count))


def _chunks(pixels: Tensor, labels: Tensor, name: str, adversary: Adversary) -> Iterator[Chunk]:
    """Images, labels and where the attack starts, drawn in the images' order."""
    generator = torch_rng(adversary.seed, "evasion", name)
    drawn = name != "natural" and find(name).start == "uniform"
    for chunk, targets in zip(pixels.split(adversary.batch_size), labels.split(adversary.batch_size), strict=True):
        yield chunk, targets, anywhere(chunk, adversary.epsilon, generator) if drawn else None


def _attack(
    model: nn.Module, pixels: Tensor, labels: Tensor, attack: Evasion, adversary: Adversary, start: Tensor | None
) -> Tensor:
    epsilon = adversary.epsilon
    step = (adversary.step or epsilon / 4) if attack.quarter else epsilon
    loss = margin if attack.loss == "margin" else cross_entropy
    budget = Budget(epsilon, step, attack.steps, adversary.bounds)
    return craft(lambda x: predict(model, x), pixels, labels, loss, budget, start, until_broken=attack.best).pixels


def _autoattack(model: nn.Module, pixels: Tensor, labels: Tensor, adversary: Adversary, tick: Tick | None) -> Tensor:
    """The library's standard ensemble: APGD-CE, targeted APGD and FAB, Square (Croce & Hein 2020)."""
    if adversary.bounds != PIXELS:
        raise UserError("attacks: aa takes images, values from 0 to 1; for tables and series use pgd20 and cw")
    from pyautoattack import AutoAttack

    with torch.inference_mode():
        classes = predict(model, pixels[:1]).shape[1]
    check_autoattack("attacks", classes)
    seed = torch_rng(adversary.seed, "evasion", "aa").initial_seed() % 2**31
    robust = []
    with torch.random.fork_rng(devices=[]):  # the library seeds torch's global generator
        for chunk, targets in zip(pixels.split(AA_BATCH), labels.split(AA_BATCH), strict=True):
            attack = AutoAttack(lambda x: predict(model, x), device=chunk.device, eps=adversary.epsilon, seed=seed)
            attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
            attacked, _ = attack.run_standard_evaluation(chunk.contiguous(), targets, batch_size=len(chunk))
            with torch.inference_mode():
                robust.append(predict(model, attacked).argmax(1) == targets)
            if tick:
                tick(len(targets))
    return torch.cat(robust)


def share(right: Tensor) -> float:
    """The part of the images that is right."""
    return float(right.double().mean())


def share_by_class(right: Tensor, labels: Tensor, classes: int) -> list[float | None]:
    """The same for each class; None for one without images."""
    chosen = [right[labels == one] for one in range(classes)]
    return [share(one) if len(one) else None for one in chosen]
