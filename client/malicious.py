"""The malicious client: trains on poisoned data, or sends another update than it trained.

Its honest part follows the others' objective (thistle.client.calibrated), on batches that it poisoned before.

In simulation the experiment says who attacks and how; on a real node its own node config alone (thistle.attacks.roles).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor, nn

from thistle.attacks.poisoning.build import make_poison
from thistle.attacks.poisoning.parts import DataAttack, Facts, Poison
from thistle.attacks.roles import Training, panel
from thistle.client.calibrated import local_loss
from thistle.client.work import Work, client_app
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import Attack
from thistle.protocol.layout import Layout
from thistle.protocol.training import TrainReply
from thistle.tasks.training import Loss


def train(work: Work) -> TrainReply:
    """1 see what colluders send ▶ 2 train on poisoned data ▶ 3 send another update than that."""
    attack = work.attack
    if attack is None:
        raise ValueError(f"client {work.client} has no orders to attack in round {work.round}")
    poison = make_poison(attack, Facts.of(work.experiment, attack, work.share.classes))
    shown = panel_updates(work, _trainings(work, attack, poison)) if poison.colludes else None

    model = work.model()
    layout = Layout.of(model)
    sent = layout.vector(model.state_dict())
    pixels, labels = work.data()
    _, taught = poison.data(pixels, labels) if poison.data else (pixels, labels)
    loss = _poisoned(local_loss(work, taught), poison.data)
    numbers = _at_rate(work, poison.rate).train(model, pixels, labels, loss)

    noise = torch_rng(work.experiment.seed, "attack", work.round, work.client)
    if shown is not None:
        _write(model, layout, sent + poison.collude(shown, noise))
    elif poison.update:
        own = layout.vector(model.state_dict()) - sent
        _write(model, layout, sent + poison.update(own, noise))
    return work.reply(model, numbers)


def _trainings(work: Work, attack: Attack, poison: Poison) -> list[Training]:
    return panel(attack, work.client, work.experiment.task.clients, work.experiment.seed)[: poison.panel]


def _at_rate(work: Work, rate: float) -> Work:
    return replace(work, request=replace(work.request, lr=rate * work.recipe().lr))


def _poisoned(loss: Loss, attack: DataAttack | None) -> Loss:
    """The loss on what the attack makes of each batch."""
    return loss if attack is None else lambda model, pixels, labels: loss(model, *attack(pixels, labels))


def _write(model: nn.Module, layout: Layout, vector: Tensor) -> None:
    """Other trained values; the buffers stay as training has left them."""
    model.load_state_dict(layout.state(vector, model.state_dict()))


_last_panel: dict[Hashable, Tensor] = {}
"""A process with several attackers trains a round's panel once."""


def panel_updates(work: Work, trainings: list[Training]) -> Tensor:
    """The updates of these trainings from the model that was sent, one a row. Uses the process's network."""
    fingerprint = hash(tuple(array.data for array in work.arrays.values()))
    key = (work.experiment, work.recipe(), work.round, fingerprint, tuple(trainings))
    if key not in _last_panel:
        alone = replace(work, control=None)  # SCAFFOLD sends each client its own, which colluders do not know
        updates = torch.stack([_honest_update(replace(alone, client=one, again=again)) for one, again in trainings])
        _last_panel.clear()
        _last_panel[key] = updates
    return _last_panel[key]


def _honest_update(work: Work) -> Tensor:
    model = work.model()
    layout = Layout.of(model)
    sent = layout.vector(model.state_dict())
    pixels, labels = work.data()
    work.train(model, pixels, labels, local_loss(work, labels))
    return layout.vector(model.state_dict()) - sent


app = client_app(train)
