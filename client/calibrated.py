"""The calibrated client: adversarial training, calibrated to the labels that the client has.

CalFAT itself is the objective `ckl` with the calibration `calfat`. One batch:

    augment ▶ craft examples for a part of it (model at rest) ▶ objective on them, cross-entropy on the rest
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from thistle.attacks.evasion.engine import Budget
from thistle.attacks.evasion.losses import cross_entropy
from thistle.client.augmentation import crop_and_flip
from thistle.client.calibrations import Views, log_prior, make_views
from thistle.client.objectives import OBJECTIVES, Setting, adversarial_ratio, craft_at_rest
from thistle.client.work import Work, client_app
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import Client, parse_ids
from thistle.protocol.training import TrainReply
from thistle.tasks.models import predict
from thistle.tasks.models.layers import clean_statistics
from thistle.tasks.training import Loss, plain_loss


def train(work: Work) -> TrainReply:
    """Train the model that was sent by the objective that the experiment names, and send it back."""
    model = work.model()
    pixels, labels = work.data()
    return work.reply(model, work.train(model, pixels, labels, local_loss(work, labels)))


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


def local_loss(work: Work, labels: Tensor) -> Loss:
    """What this client minimises, given all the labels that it trains on."""
    client = work.experiment.client
    if client.plain:
        return plain_loss
    prior = log_prior(labels, work.share.classes, client.prior_delta)
    setting = Setting(
        Budget(client.epsilon, client.step, client.steps, work.share.bounds),
        torch_rng(work.experiment.seed, "adversarial", *work.where),
        warm=work.round > client.warmup,
    )
    ratio = adversarial_ratio(client) if trains_adversarially(work) else 0.0
    return CalibratedLoss(client, make_views(client, prior), setting, ratio)


def trains_adversarially(work: Work) -> bool:
    """Whether this client is among `client.adversarial-clients` (empty: all are)."""
    chosen, clients = work.experiment.client.adversarial_clients, work.experiment.task.clients
    return not chosen or work.client in parse_ids("client.adversarial-clients", chosen, clients)


app = client_app(train)
