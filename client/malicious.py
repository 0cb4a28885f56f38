"""The malicious client: trains on poisoned data, or sends another update than it trained.

Its honest part follows the others' objective (thistle.client.calibrated), on batches that it poisoned before.

In simulation the experiment says who attacks and how; on a real node its own node config alone (thistle.attacks.roles).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from thistle.attacks.defence import known_defence
from thistle.attacks.poisoning.build import make_poison
from thistle.attacks.poisoning.parts import Constraint, DataAttack, Facts, Past, Poison, Sent
from thistle.attacks.registry import chosen
from thistle.attacks.roles import Training, panel
from thistle.client.calibrated import local_loss
from thistle.client.work import Work, believable, client_app
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import Attack
from thistle.protocol.layout import Layout
from thistle.protocol.records import NOTE
from thistle.protocol.training import TrainReply
from thistle.tasks.training import Loss

MODEL, SENT = "model", "sent"
"""In the attackers' memory, besides the attack's own notes: the model that came, and the update that was sent."""


def train(work: Work) -> TrainReply:
    """1 see what colluders send ▶ 2 train on poisoned data ▶ 3 send another update than that."""
    attack = work.attack
    if attack is None:
        raise ValueError(f"client {work.client} has no orders to attack in round {work.round}")
    facts = _facts(work, attack)
    poison = make_poison(attack, facts)
    shown = panel_updates(work, _trainings(work, attack, poison, facts)) if poison.colludes else None

    model = work.model()
    layout = Layout.of(model)
    sent = layout.vector(model.state_dict())
    pixels, labels = work.data()
    noise = torch_rng(work.experiment.seed, "attack", work.round, work.client)
    past = _past(work, sent)
    aimed = poison.aim(model, pixels, labels, past, noise) if poison.aim else None
    data = aimed.data if aimed else poison.data
    _, taught = data(pixels, labels) if data else (pixels, labels)
    loss = _constrained(_poisoned(local_loss(work, taught), data), poison.constraint, model)
    with _spared(model, layout, poison.spared(past) if poison.spared else None):
        numbers = _at_rate(work, poison.rate).train(model, pixels, labels, loss)
    if facts.defence:  # who knows the strategy also knows which losses a guard believes
        numbers["loss"] = believable(numbers["loss"])

    own = layout.vector(model.state_dict()) - sent
    known = _notes(aimed.notes) if aimed else {}
    if shown is not None:
        own = poison.collude(shown, noise)
    elif poison.update:
        own = poison.update(own, noise)
    if poison.recollection:
        found = poison.recollection(own, past, noise)
        own, known = found.update, known | _remembered(sent, found)
    if poison.changes_update:
        _write(model, layout, sent + own)
    return work.reply(model, numbers, known)


def _facts(work: Work, attack: Attack) -> Facts:
    facts = replace(Facts.of(work.experiment, attack, work.share.classes), number=work.round)
    rule = chosen(attack).tries_out()
    if rule is None:
        return facts
    defence = known_defence(work.experiment, rule, work.round, work.arrays, work.recipe().lr, work.defence)
    return replace(facts, defence=defence, **defence.counts())


def _past(work: Work, model: Tensor) -> Past:
    memory = work.memory or {}
    notes = {name.removeprefix(NOTE): tensor for name, tensor in memory.items() if name.startswith(NOTE)}
    return Past(model, memory.get(MODEL), memory.get(SENT), notes)


def _remembered(model: Tensor, found: Sent) -> dict[str, Tensor]:
    return {MODEL: model, SENT: found.update, **_notes(found.notes)}


def _notes(notes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {NOTE + name: tensor for name, tensor in notes.items()}


def _trainings(work: Work, attack: Attack, poison: Poison, facts: Facts) -> list[Training]:
    if facts.defence and facts.defence.honest:
        return [(client, 0) for client in facts.defence.honest]
    clients, seed = work.experiment.task.clients, work.experiment.seed
    return panel(attack, work.client, clients, seed, poison.panel)


def _at_rate(work: Work, rate: float) -> Work:
    return replace(work, request=replace(work.request, lr=rate * work.recipe().lr))


def _poisoned(loss: Loss, attack: DataAttack | None) -> Loss:
    """The loss on what the attack makes of each batch."""
    return loss if attack is None else lambda model, pixels, labels: loss(model, *attack(pixels, labels))


def _constrained(loss: Loss, constraint: Constraint | None, model: nn.Module) -> Loss:
    """The loss with what the attack makes of it, which may look at the parameters that came."""
    if constraint is None:
        return loss
    came = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return lambda model, pixels, labels: constraint(loss(model, pixels, labels), model, came)


@contextmanager
def _spared(model: nn.Module, layout: Layout, mask: Tensor | None) -> Iterator[None]:
    """Meanwhile, the parameters that the mask names have no gradient."""
    if mask is None:
        yield
        return
    moved = layout.state((~mask).float(), model.state_dict())
    trained = [(parameter, moved[name]) for name, parameter in model.named_parameters() if parameter.requires_grad]
    hooks = [parameter.register_hook(lambda gradient, part=part: gradient * part) for parameter, part in trained]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _write(model: nn.Module, layout: Layout, vector: Tensor) -> None:
    """Other trained values; the buffers stay as training has left them."""
    model.load_state_dict(layout.state(vector, model.state_dict()))


_last_panel: dict[Hashable, Tensor] = {}
"""A process with several attackers trains a round's panel once."""


def panel_updates(work: Work, trainings: list[Training]) -> Tensor:
    """The updates of these trainings from the model that was sent, one per row. Uses the process's network."""
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
