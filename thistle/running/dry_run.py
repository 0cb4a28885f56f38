"""What is the user's own is tried on made-up data, so that a slip in it shows before anything is trained."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from thistle.attacks.poisoning.build import Facts, make_poison
from thistle.attacks.poisoning.parts import Past
from thistle.attacks.roles import PANEL
from thistle.attacks.training.loss import server_loss
from thistle.engines.inline import InlineGrid, quiet_flower
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import explain, is_own
from thistle.experiments.randomness import torch_rng
from thistle.protocol.answer import Answer
from thistle.protocol.layout import Layout, State, to_record
from thistle.protocol.training import EXAMPLES, LOSS, RATE, REPORT_LOSSES, SECONDS, task_facts
from thistle.server.guard.casting import cast_aggregate
from thistle.strategies.build import make_strategy
from thistle.tasks.models import build_model
from thistle.tasks.task import Task

KEY, ATTACK = "strategy.name", "attack.kind"
IMAGES = 4
"""In the batch on which an attack is tried."""


def dry_run(experiment: Experiment, task: Task) -> None:
    """Try the strategy and the attack, if they are the user's own; UserError where one of them cannot work."""
    if is_own(experiment.attack.kind):
        _try_attack(experiment, task)
    if is_own(experiment.strategy.name):
        with quiet_flower():
            _one_round(experiment, task)


def _try_attack(experiment: Experiment, task: Task) -> None:
    """Each part of it once: a vector stays a vector of its length, a batch a batch."""
    name, facts = experiment.attack.kind, Facts.of(experiment, experiment.attack, task.classes)
    poison = make_poison(experiment.attack, facts)
    size = Layout.of(build_model(experiment.network, task.shape, task.classes, experiment.seed)).size
    noise = torch_rng(0, "dry-run")
    panel = 0.01 * torch.randn(poison.panel or PANEL, size, generator=noise)
    images, labels = torch.rand(IMAGES, *task.shape, generator=noise), torch.arange(IMAGES) % task.classes
    try:
        taught = poison.data(images, labels) if poison.data else (images, labels)
        sent = {
            "update": poison.update(panel[0], noise) if poison.update else panel[0],
            "collusion": poison.collude(panel, noise) if poison.colludes else panel[0],
            "recollection": poison.recollection(panel[0], Past(panel[0]), noise).update
            if poison.recollection
            else panel[0],
        }
    except Exception as error:
        raise UserError(explain(name, ATTACK, "fails on a made-up update or batch", error)) from None
    problems = [*(_wrong_vector(part, vector, size) for part, vector in sent.items()), _wrong_batch(taught, images)]
    for problem in filter(None, problems):
        raise UserError(f"{ATTACK} = {name!r}: its {problem}")


def _wrong_vector(part: str, vector: object, size: int) -> str:
    if isinstance(vector, Tensor) and vector.shape == (size,):
        return ""
    return f"{part} should be a vector of {size} numbers, not {_seen(vector)}"


def _wrong_batch(taught: object, images: Tensor) -> str:
    if not (isinstance(taught, tuple) and len(taught) == 2 and all(isinstance(part, Tensor) for part in taught)):
        return f"data should be (images, labels), not {_seen(taught)}"
    pixels, labels = taught
    if pixels.shape[1:] == images.shape[1:] and labels.shape == (len(pixels),):
        return ""
    return f"data should be images as they came, and a label for each, not {_seen(pixels)} and {_seen(labels)}"


def _seen(value: object) -> str:
    return f"a tensor of {'×'.join(map(str, value.shape))}" if isinstance(value, Tensor) else type(value).__name__


def _one_round(experiment: Experiment, task: Task) -> None:
    """Without clients: each reply is the model that was sent, and a little noise."""
    name, client = experiment.strategy.name, experiment.client
    network = build_model(experiment.network, task.shape, task.classes, experiment.seed)
    layout = Layout.of(network)
    arrays = to_record(network.state_dict())
    strategy = make_strategy(experiment, task, layout, server_loss(experiment, task))
    strategy.fit(client.per_round)
    grid = InlineGrid(ClientApp(), experiment, 0)
    grid.hosts = list(range(experiment.task.clients))
    config = ConfigRecord({RATE: client.lr, REPORT_LOSSES: False, **task_facts(task.dataset.classes, task.shape)})
    try:
        messages = list(strategy.configure_train(1, arrays, config, grid))
        if not messages:
            raise UserError(f"{KEY} = {name!r}: asks no client to train")
        aggregate, _ = strategy.next_model(1, *_answers(messages, network.state_dict(), layout))
    except UserError:
        raise
    except Exception as error:
        raise UserError(explain(name, KEY, "fails on made-up replies", error)) from None
    _, problem = cast_aggregate(aggregate, arrays, layout)
    if problem:
        raise UserError(f"{KEY} = {name!r}: cannot make a model from made-up replies: {problem}")


def _answers(messages: list[Message], state: State, layout: Layout) -> tuple[list[Answer], np.ndarray]:
    """A reply to each message, and the block of what they change."""
    clients = sorted(message.metadata.dst_node_id for message in messages)
    noise = torch.stack([0.01 * torch.randn(layout.size, generator=torch_rng(0, "dry-run", c)) for c in clients])
    answers = []
    for client, change in zip(clients, noise, strict=True):
        made = layout.state(layout.vector(state) + change, state)
        arrays = {name: tensor.numpy() for name, tensor in made.items()}
        answers.append(Answer(client, {EXAMPLES: 10, LOSS: 1.0, SECONDS: 0.1}, arrays))
    return answers, noise.numpy()
