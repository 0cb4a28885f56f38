"""The calibrated client: adversarial training, calibrated to the labels that the client has.

CalFAT itself is the objective `ckl` with the calibration `calfat`; the mathematics is in thistle.attacks.training.
"""

from __future__ import annotations

from torch import Tensor

from thistle.attacks.training.loss import calibrated_loss
from thistle.attacks.training.objectives import adversarial_ratio
from thistle.client.work import Work, client_app
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import parse_ids
from thistle.protocol.training import TrainReply
from thistle.tasks.training import Loss, plain_loss


def train(work: Work) -> TrainReply:
    """Train the model that was sent by the objective that the experiment names, and send it back."""
    model = work.model()
    pixels, labels = work.data()
    return work.reply(model, work.train(model, pixels, labels, local_loss(work, labels)))


def local_loss(work: Work, labels: Tensor) -> Loss:
    """What this client minimises, given all the labels that it trains on."""
    client = work.experiment.client
    if client.plain:
        return plain_loss
    generator = torch_rng(work.experiment.seed, "adversarial", *work.where)
    ratio = adversarial_ratio(client) if trains_adversarially(work) else 0.0
    share = work.share
    return calibrated_loss(client, labels, share.classes, generator, work.round, ratio, share.bounds)


def trains_adversarially(work: Work) -> bool:
    """Whether this client is among `client.adversarial-clients` (empty: all are)."""
    chosen, clients = work.experiment.client.adversarial_clients, work.experiment.task.clients
    return not chosen or work.client in parse_ids("client.adversarial-clients", chosen, clients)


app = client_app(train)
