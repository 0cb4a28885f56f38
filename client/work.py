"""What all kinds of clients have in common: read its message, find its data, load the model, reply.

A process hosts many clients one after the other: the task, the network and nothing else are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from thistle.attacks.roles import SIMULATED, orders
from thistle.client.data import Share, find_share
from thistle.client.memory import read_memory, read_state, times, write_memory
from thistle.client.privacy import noise_rng, privatise, silent
from thistle.client.terms import local_terms
from thistle.experiments import settings
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import seed_for, seed_torch, torch_rng
from thistle.experiments.settings import Value
from thistle.protocol.factors import to_factors
from thistle.protocol.layout import CONTROL, Layout, load_record, to_record, to_state
from thistle.protocol.records import ARRAYS, CONFIG, DEFENCE, LARGEST_LOSS, MEMORY
from thistle.protocol.training import TrainReply, TrainRequest
from thistle.tasks.dataset import Shape
from thistle.tasks.models import build_model
from thistle.tasks.training import Loss, Recipe, evaluate, pick_device, plain_loss, to_tensors, train

Numbers = dict[str, Any]
"""The fields of a reply besides the model."""


def experiment_of(context: Context) -> Experiment:
    """The run's experiment, checked once a process."""
    return _experiment(tuple(context.run_config.items()))


@lru_cache(maxsize=2)
def _experiment(flat: tuple[tuple[str, Value], ...]) -> Experiment:
    return Experiment.of(dict(flat))


@lru_cache(maxsize=2)
def cached_model(model: settings.Model, shape: Shape, classes: int, seed: int, device: torch.device) -> nn.Module:
    """The process's one network; its weights are overwritten for every client."""
    return build_model(model, shape, classes, seed).to(device)


@dataclass
class Work:
    """One client's work in one round."""

    experiment: Experiment
    share: Share
    client: int
    request: TrainRequest
    arrays: ArrayRecord
    device: torch.device
    attack: settings.Attack | None = None
    """What it does in this round instead of its honest work."""
    control: Tensor | None = None
    """SCAFFOLD's c − c_i, where the server sent it: added to every gradient."""
    memory: Mapping[str, Tensor] | None = None
    """What attackers saw and sent before; None: this client need not remember anything."""
    defence: Mapping[str, np.ndarray] | None = None
    """The strategy's state, where attackers know it."""
    simulated: bool = False
    """Not on a real node: whatever is random follows from the seed."""
    again: int = 0
    """Another training of the same client in the same round has another number."""
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, content: RecordDict, client: int, experiment: Experiment, node_config: Mapping[str, Value]) -> Work:
        """From what was sent to this client, and from what its node reports about itself."""
        torch.set_num_threads(1)
        request = TrainRequest.read(cast(ConfigRecord, content[CONFIG]))
        local = local_terms(experiment, request, node_config)
        control = cast(ArrayRecord | None, content.get(CONTROL))
        memory = read_memory(cast(ArrayRecord | None, content.get(MEMORY)))
        return cls(
            experiment=local,
            share=find_share(local, request, node_config),
            client=client,
            request=request,
            arrays=cast(ArrayRecord, content[ARRAYS]),
            device=pick_device(local.runtime.device),
            attack=orders(client, request.number, local, node_config, times(memory)),
            control=None if control is None else torch.from_numpy(control[CONTROL].numpy()),
            memory=memory,
            simulated=node_config.get(SIMULATED) is True,
            defence=read_state(cast(ArrayRecord | None, content.get(DEFENCE))),
        )

    @property
    def round(self) -> int:
        """The round's number."""
        return self.request.number

    @property
    def where(self) -> tuple[int, ...]:
        """What names this training's random numbers, besides the seed and their purpose."""
        return (self.round, self.client, *([self.again] if self.again else []))

    def model(self) -> nn.Module:
        """The process's network with the weights that were sent."""
        experiment = self.experiment
        model = cached_model(experiment.network, self.share.shape, self.share.classes, experiment.seed, self.device)
        load_record(model, self.arrays)
        return model

    def data(self) -> tuple[Tensor, Tensor]:
        """This client's images and labels."""
        return to_tensors(self.share.client_images(self.client), self.device)

    def recipe(self) -> Recipe:
        """How the experiment, and the server for this round, want it trained."""
        client = self.experiment.client
        return Recipe(
            epochs=client.epochs,
            batch_size=client.batch_size,
            lr=client.lr if self.request.lr is None else self.request.lr,
            momentum=client.momentum,
            weight_decay=client.weight_decay,
            proximal_mu=self.request.proximal_mu,
            precision=client.precision,
        )

    def train(self, model: nn.Module, pixels: Tensor, labels: Tensor, loss: Loss = plain_loss) -> Numbers:
        """Train in place, seeded by (seed, round, client); returns the reply's numbers."""
        seed, where, request = self.experiment.seed, self.where, self.request
        batch = self.experiment.evaluate.batch_size
        numbers: Numbers = {"num_examples": len(labels)}
        if request.report_losses:
            numbers["loss_before"] = believable(evaluate(model, pixels, labels, batch)[1])
        seed_torch(seed_for(seed, "dropout", *where))
        generator = torch_rng(seed, "batches", *where)
        numbers["loss"] = train(model, pixels, labels, self.recipe(), generator, loss, self._shift(model))
        if request.report_losses:
            numbers["loss_after"] = believable(evaluate(model, pixels, labels, batch)[1])
        if request.report_classes:
            numbers["class_counts"] = torch.bincount(labels, minlength=self.share.classes).tolist()
        return numbers

    def _shift(self, model: nn.Module) -> list[Tensor] | None:
        """The control variate's part for each parameter of the model."""
        if self.control is None:
            return None
        parts = Layout.of(model).state(self.control, model.state_dict())
        return [parts[name].to(self.device) for name, parameter in model.named_parameters() if parameter.requires_grad]

    def reply(self, model: nn.Module, numbers: Numbers, learnt: Mapping[str, Tensor] | None = None) -> TrainReply:
        """The client's model, or its update's factors where these were asked for; `learnt`: to be remembered."""
        state, rank, client = model.state_dict(), self.request.rank, self.experiment.client
        if client.local_bound:
            rng = noise_rng(self.experiment.seed, self.simulated, *self.where)
            state, numbers = privatise(client, model, to_state(self.arrays), rng), silent(client, numbers)
        arrays = to_record(state) if rank is None else to_factors(state, self.arrays, Layout.of(model), rank)
        memory = None if self.memory is None else write_memory(self.memory, learnt or {})
        return TrainReply(arrays, seconds=time.perf_counter() - self.started, memory=memory, **numbers)


Train = Callable[[Work], TrainReply]
"""What a client of some kind does with its work."""


def client_app(train: Train) -> ClientApp:
    """A complete ClientApp of clients of one kind; the node config's partition-id says which client it is."""
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        work = Work.of(message.content, client, experiment_of(context), context.node_config)
        return Message(train(work).records(), reply_to=message)

    return app


def believable(loss: float) -> float:
    """At most what a server takes: a model may be damaged when it comes, which is not the client's fault."""
    return LARGEST_LOSS if math.isnan(loss) else min(loss, LARGEST_LOSS)
