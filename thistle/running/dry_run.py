"""A strategy of the user's own is tried on made-up replies, so that a slip in it shows before anything is trained."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp

from thistle.engines.inline import InlineGrid, quiet_flower
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import explain
from thistle.experiments.randomness import torch_rng
from thistle.protocol.answer import Answer
from thistle.protocol.layout import Layout, State, to_record
from thistle.protocol.training import EXAMPLES, LOSS, RATE, REPORT_LOSSES, SECONDS, task_facts
from thistle.server.guard.casting import cast_aggregate
from thistle.strategies.build import make_strategy
from thistle.tasks.models import build_model
from thistle.tasks.task import Task

KEY = "strategy.name"


def dry_run(experiment: Experiment, task: Task) -> None:
    """One round without clients: each reply is the model that was sent, and a little noise."""
    with quiet_flower():
        _one_round(experiment, task)


def _one_round(experiment: Experiment, task: Task) -> None:
    name, client = experiment.strategy.name, experiment.client
    network = build_model(experiment.network, task.shape, task.classes, experiment.seed)
    layout = Layout.of(network)
    arrays = to_record(network.state_dict())
    strategy = make_strategy(experiment, task, layout)
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
        raise UserError(f"{KEY} = {name!r}: does not make a model of made-up replies: {problem}")


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
