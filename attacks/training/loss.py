"""What adversarial training minimises on a batch.

augment ▶ craft examples for a part of it (model at rest) ▶ objective on them, cross-entropy on the rest
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from thistle.attacks.evasion.engine import Budget
from thistle.attacks.evasion.losses import cross_entropy
from thistle.attacks.training.calibrations import Views, make_views, prior_of
from thistle.attacks.training.objectives import OBJECTIVES, Setting, adversarial_ratio, craft_at_rest
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import Client
from thistle.tasks.augmentation import crop_and_flip
from thistle.tasks.dataset import PIXELS, Bounds
from thistle.tasks.models import predict
from thistle.tasks.models.layers import clean_statistics
from thistle.tasks.task import Task
from thistle.tasks.training import Loss, pick_device, to_tensors


@dataclass(frozen=True, eq=False)
class CalibratedLoss:
    """A batch's loss: the objective on its first images, `ratio` of them; the cross-entropy on the others."""

    client: Client
    views: Views
    setting: Setting
    ratio: float

    def __call__(self, model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        if self.client.augment:
            pixels = crop_and_flip(pixels, self.setting.generator)
        count = math.ceil(self.ratio * len(labels) - 1e-9)
        if count == 0:
            return self._natural(model, pixels, labels)
        adversarial = self._adversarial(model, pixels[:count], labels[:count])
        if count == len(labels):
            return adversarial
        natural = self._natural(model, pixels[count:], labels[count:])
        return (count * adversarial + (len(labels) - count) * natural) / len(labels)

    def _adversarial(self, model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        chosen = OBJECTIVES[self.client.objective]
        crafted = craft_at_rest(chosen.craft, model, self.views.examples, pixels, labels, self.setting)
        forward = lambda x: self.views.loss(predict(model, x), labels)  # noqa: E731
        return chosen.minimise(forward, pixels, crafted, labels, self.setting)

    def _natural(self, model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        with clean_statistics(model):
            return cross_entropy(self.views.loss(predict(model, pixels), labels), labels).mean()


def calibrated_loss(
    client: Client,
    labels: Tensor,
    classes: int,
    generator: torch.Generator,
    number: int,
    ratio: float,
    bounds: Bounds = PIXELS,
) -> CalibratedLoss:
    """As `client` has it in round `number`, for training on these labels; `ratio` of a batch is adversarial.

    `bounds`: of what the model sees.
    """
    budget = Budget(client.epsilon, client.step, client.steps, bounds)
    setting = Setting(budget, generator, warm=number > client.warmup)
    return CalibratedLoss(client, make_views(client, prior_of(client, labels, classes)), setting, ratio)


def server_loss(experiment: Experiment, task: Task) -> Callable[[int], Loss] | None:
    """From the round to what the server minimises on its own images: as the clients do, calibrated to its own labels.

    Not augmented: those images may be drawn. None: clients minimise the plain cross-entropy, or there are no images.
    """
    if experiment.client.plain or task.server_images is None:
        return None
    client = experiment.client.model_copy(update={"augment": False})
    _, labels = to_tensors(task.server_images, pick_device(experiment.runtime.device))
    return partial(_server_loss, client, labels, task.classes, experiment.seed, task.server_images.bounds)


def _server_loss(client: Client, labels: Tensor, classes: int, seed: int, bounds: Bounds, number: int) -> Loss:
    generator = torch_rng(seed, "server-adversarial", number)
    return calibrated_loss(client, labels, classes, generator, number, adversarial_ratio(client), bounds)
