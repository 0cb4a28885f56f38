"""A backdoor whose trigger is adapted: to the model, and to one that has been trained to unlearn it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from thistle.attacks.poisoning.backdoor import Stamping
from thistle.attacks.poisoning.parts import Aimed, Facts, Past, Poison
from thistle.attacks.poisoning.trigger import Trigger, shape_of, square
from thistle.attacks.registry import Evaluated, attack, setting
from thistle.experiments.errors import UserError
from thistle.experiments.settings import NonNegative
from thistle.tasks.dataset import Shape
from thistle.tasks.models import predict
from thistle.tasks.training import SGD, Recipe, batches

PATTERN = "pattern"
"""The attackers' note of δ."""
GRAY = 0.5
STEP = 0.01
"""Of the signed descent on δ."""
UNLEARNING = Recipe(epochs=5, batch_size=64, lr=0.01, momentum=0.9, weight_decay=5e-4)
RENEWAL = 5
"""θ' is made again after this many passes."""
IMAGES = 128
"""The search uses at most this many of a client's images."""
Side = Annotated[int, Field(ge=1, lt=2**63)]


@attack("a3fl", "Zhang et al. 2023", knows="own data")
class A3FL(Stamping):
    """A backdoor whose trigger is fitted to the model, and to one that unlearns it.

    δ minimises L(x ⊕ δ, target; θ) + λ L(x ⊕ δ, target; θ'), where θ' is θ trained on (x ⊕ δ, y), with
    λ = λ0 cos(θ', θ). Attackers go on from the trigger that one of them found last.
    """

    side: Side = setting("pixels of the side of the trigger, a square in the lower right corner", default=3)
    passes: Annotated[int, Field(ge=1, lt=2**63)] = setting("passes over the images per search", default=20)
    adaptation: NonNegative = setting("λ0", default=0.01)
    remembers = True

    def poison(self, facts: Facts) -> Poison:
        """The trigger first, then a backdoor as any other."""
        return replace(super().poison(facts), aim=self.aim)

    def aim(self, model: nn.Module, pixels: Tensor, labels: Tensor, past: Past, generator: torch.Generator) -> Aimed:
        """Search, then stamp."""
        trigger = self.found(shape_of(pixels), past.notes.get(PATTERN))
        rows = torch.randperm(len(labels), generator=generator)[:IMAGES].to(pixels.device)
        trigger = self.search(model, trigger, pixels[rows], labels[rows], generator)
        return Aimed(partial(self.stamped, trigger), {PATTERN: trigger.pattern})

    def found(self, shape: Shape, pattern: Tensor | None) -> Trigger:
        """The latest trigger; gray: nobody has searched yet."""
        gray = square(shape, self.side, GRAY)
        return gray if pattern is None else Trigger(gray.mask, pattern)

    def search(
        self, model: nn.Module, trigger: Trigger, pixels: Tensor, labels: Tensor, generator: torch.Generator
    ) -> Trigger:
        """Signed descent on δ, within [0, 1]; the first passes are against the model alone, as nothing is unlearnt."""
        theta, adapted, weight = _at_rest(model), None, 0.0
        for number in range(self.passes):
            if number % RENEWAL == 0 and number and self.adaptation:
                adapted = unlearn(theta, trigger, pixels, labels, generator)
                weight = self.adaptation * similarity(adapted, theta)
            for rows in _batches(len(labels), generator, pixels.device):
                trigger = self._improved(trigger, pixels[rows], theta, adapted, weight)
        return trigger

    def _improved(
        self, trigger: Trigger, pixels: Tensor, theta: nn.Module, adapted: nn.Module | None, weight: float
    ) -> Trigger:
        pattern = trigger.pattern.clone().requires_grad_()
        stamped = Trigger(trigger.mask, pattern)(pixels)
        wanted = torch.full((len(pixels),), self.target, device=pixels.device)
        loss = cross_entropy(predict(theta, stamped), wanted)
        if adapted is not None:
            loss = loss + weight * cross_entropy(predict(adapted, stamped), wanted)
        (gradient,) = torch.autograd.grad(loss, pattern)
        return Trigger(trigger.mask, (trigger.pattern - STEP * gradient.sign()).clamp(0.0, 1.0))

    def check_images(self, shape: Shape) -> None:
        """The trigger must leave something of the image."""
        if self.side >= min(shape[1:]):
            size = "×".join(map(str, shape[1:]))
            raise UserError(f"attack.side = {self.side}: images have {size} pixels; use a smaller one")

    def whole(self, evaluated: Evaluated) -> Trigger:
        """What attackers found last."""
        return self.found(evaluated.shape, evaluated.notes.get(PATTERN))


def unlearn(
    theta: nn.Module, trigger: Trigger, pixels: Tensor, labels: Tensor, generator: torch.Generator
) -> nn.Module:
    """θ': the model trained on stamped images with their true labels, without dropout and with fixed statistics."""
    adapted = copy.deepcopy(theta).requires_grad_(True)
    optimiser = SGD(list(adapted.parameters()), UNLEARNING)
    stamped = trigger(pixels)
    for _ in range(UNLEARNING.epochs):
        for rows in _batches(len(labels), generator, pixels.device):
            cross_entropy(predict(adapted, stamped[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return adapted.requires_grad_(False)


def similarity(one: nn.Module, other: nn.Module) -> float:
    """The cosine of their parameters."""
    flat = [torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) for model in (one, other)]
    return float(cosine_similarity(flat[0], flat[1], dim=0))


def _at_rest(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).eval().requires_grad_(False)


def _batches(count: int, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    return (rows.to(device) for rows in batches(count, UNLEARNING.batch_size, generator))
