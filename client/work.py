"""What every kind of client does alike: read its message, find its data, load the model, reply.

A process hosts many clients one after the other: the task, the network and nothing else are kept.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from thistle.client.data import Share, find_share
from thistle.client.terms import local_terms
from thistle.experiments import settings
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import seed_for, seed_torch, torch_rng
from thistle.experiments.settings import Value
from thistle.protocol.factors import asked_rank, to_factors
from thistle.protocol.layout import CONTROL, Layout, load_record, to_record
from thistle.protocol.records import LARGEST_LOSS, arrays_of, config_of
from thistle.tasks.models import build_model
from thistle.tasks.training import Loss, Recipe, evaluate, pick_device, plain_loss, to_tensors, train

Metrics = dict[str, float | list[int]]


def experiment_of(context: Context) -> Experiment:
    """The run's experiment, checked once a process."""
    return _experiment(tuple(context.run_config.items()))


@lru_cache(maxsize=2)
def _experiment(flat: tuple[tuple[str, Value], ...]) -> Experiment:
    return Experiment.of(dict(flat))


@lru_cache(maxsize=2)
def cached_model(
    model: settings.Model, shape: tuple[int, int, int], classes: int, seed: int, device: torch.device
) -> nn.Module:
    """The process's one network; its weights are overwritten for every client."""
    return build_model(model, shape, classes, seed).to(device)


@dataclass
class Work:
    """One client's work in one round."""

    experiment: Experiment
    share: Share
    client: int
    round: int
    config: ConfigRecord
    arrays: ArrayRecord
    device: torch.device
    control: Tensor | None = None
    """SCAFFOLD's c − c_i, where the server sent it: added to every gradient."""
    again: int = 0
    """Another training of the same client in the same round has another number."""
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, message: Message, context: Context) -> Work:
        """From Flower's message and context, as any ClientApp gets them."""
        torch.set_num_threads(1)
        config = config_of(message)
        experiment = local_terms(experiment_of(context), config, context.node_config)
        control = cast(ArrayRecord | None, message.content.get(CONTROL))
        return cls(
            experiment=experiment,
            share=find_share(experiment, config, context.node_config),
            client=int(context.node_config["partition-id"]),
            round=int(config["server-round"]),  # type: ignore[arg-type]
            config=config,
            arrays=arrays_of(message),
            device=pick_device(experiment.runtime.device),
            control=None if control is None else torch.from_numpy(control[CONTROL].numpy()),
        )

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
            lr=float(self.config.get("lr", client.lr)),  # type: ignore[arg-type]
            momentum=client.momentum,
            weight_decay=client.weight_decay,
            proximal_mu=float(self.config.get("proximal-mu", 0.0)),  # type: ignore[arg-type]
        )

    def train(self, model: nn.Module, pixels: Tensor, labels: Tensor, loss: Loss = plain_loss) -> Metrics:
        """Train in place, seeded by (seed, round, client); returns the reply's metrics."""
        seed, where = self.experiment.seed, self.where
        asked = bool(self.config.get("report-losses", False))
        batch = self.experiment.evaluate.batch_size
        metrics: Metrics = {"loss-before": _reported(evaluate(model, pixels, labels, batch)[1])} if asked else {}
        seed_torch(seed_for(seed, "dropout", *where))
        generator = torch_rng(seed, "batches", *where)
        metrics["loss"] = train(model, pixels, labels, self.recipe(), generator, loss, self._shift(model))
        if asked:
            metrics["loss-after"] = _reported(evaluate(model, pixels, labels, batch)[1])
        if self.config.get("report-classes", False):
            metrics["class-counts"] = torch.bincount(labels, minlength=self.share.classes).tolist()
        return metrics

    def _shift(self, model: nn.Module) -> list[Tensor] | None:
        """The control variate's part for each parameter of the model."""
        if self.control is None:
            return None
        parts = Layout.of(model).state(self.control, model.state_dict())
        return [parts[name].to(self.device) for name, parameter in model.named_parameters() if parameter.requires_grad]

    def reply(self, message: Message, model: nn.Module, examples: int, metrics: Metrics) -> Message:
        """The client's model (Flower's convention), or its update's factors where these were asked for; its numbers."""
        state, rank = model.state_dict(), asked_rank(self.config)
        arrays = to_record(state) if rank is None else to_factors(state, self.arrays, Layout.of(model), rank)
        numbers = MetricRecord({"num-examples": examples, "seconds": time.perf_counter() - self.started, **metrics})
        content = RecordDict({"arrays": arrays, "metrics": numbers})
        return Message(content, reply_to=message)


def _reported(loss: float) -> float:
    """At most what a server takes: a model may be damaged when it comes, which is not the client's fault."""
    return LARGEST_LOSS if math.isnan(loss) else min(loss, LARGEST_LOSS)
