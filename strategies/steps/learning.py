"""The server's own data at work: its gradient, and local SGD on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thistle.experiments.errors import UserError
from thistle.experiments.randomness import seed_for, seed_torch, torch_rng
from thistle.protocol.layout import Layout, State
from thistle.strategies import aggregators
from thistle.strategies.buffers import Statistics
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.agreement import Anchor, Head
from thistle.tasks.models import predict
from thistle.tasks.models.statistics import estimate_statistics, tracking_norms
from thistle.tasks.shards import Shards
from thistle.tasks.threads import on_copies
from thistle.tasks.training import Backward, Recipe, at_once, train
from thistle.tasks.training import Loss as TrainLoss

Loss = Callable[[Tensor, Tensor], Tensor]
"""(the network's outputs, labels) → the mean loss, as torch's losses are."""

Batch = tuple[Tensor, Tensor]
R = TypeVar("R")
Objective = Callable[[int], TrainLoss]
"""From the round to the loss of (network, inputs, labels)."""

CHUNK = 500
GROUPS = 10
"""The most directions that are kept of the server's data: each is as long as a model."""
FALLING, LATE = "falling", "late"


@dataclass
class ServerData:
    """Examples that the server holds itself, and a network to try them on."""

    network: nn.Module
    layout: Layout
    inputs: Tensor
    labels: Tensor
    epochs: int
    batch_size: int
    weight_decay: float
    seed: int
    loss: Loss = cross_entropy
    objective: Objective | None = None
    """What `learn` minimises instead; filters always judge by `loss`."""

    @cached_property
    def shards(self) -> Shards:
        """How batches are cut."""
        return Shards(self.network, self.inputs[:1])

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, data: Any, **how: Any) -> ServerData:
        """From what a strategy was given: a copy of the network, and tensors or a loader of them."""
        inputs, labels = _as_tensors(data)
        device = next((parameter.device for parameter in model.parameters()), inputs.device)
        return cls(deepcopy(model), layout, inputs.to(device), labels.to(device), **how)

    def names(self) -> dict[str, str]:
        """What the network calls each array of the layout; arrays without names ("0", "1", …) are taken in order."""
        own = [name for name, _ in _in_order(self.network, self.layout)]
        return {entry.name: name for entry, name in zip(self.layout.entries, own, strict=True)}

    def fitting_batch_size(self) -> int:
        """The batch size, or the next one that leaves no single example over, which batch norm cannot learn from."""
        size, count = self.batch_size, len(self.labels)
        if not any(isinstance(module, nn.BatchNorm1d) for module in self.network.modules()):
            return size
        if count == 1:
            raise UserError("server_data: batch norm needs at least two examples")
        return next(fit for fit in range(max(size, 2), max(size, count) + 2) if count % fit != 1)

    @property
    def backward(self) -> Backward:
        """In parts, where the loss is known to be a mean over images."""
        return self.shards if self.loss is cross_entropy else at_once

    def train_loss(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over a batch."""
        return self.loss(predict(network, inputs), labels)

    def in_chunks(self, work: Callable[[nn.Module, Batch], R], inputs: Tensor, labels: Tensor) -> list[R]:
        """`work` on the network, or a copy, and each chunk of these data; in eval mode."""
        self.network.eval()
        size = self.shards.chunk(CHUNK)
        chunks = list(zip(inputs.split(size), labels.split(size), strict=True))
        return on_copies(work, self.network, inputs[:1], chunks, len(chunks))

    def summed_loss(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """The sum over a batch; a loss that is not cross-entropy is taken to be a mean."""
        outputs = predict(network, inputs)
        if self.loss is cross_entropy:
            return cross_entropy(outputs, labels, reduction="sum")
        return self.loss(outputs, labels) * len(labels)


def check_shapes(model: nn.Module, layout: Layout) -> None:
    """Refuse a model of other shapes than the arrays that are sent; names were compared when the layout was made."""
    for (name, tensor), entry in zip(_in_order(model, layout), layout.entries, strict=True):
        if tuple(tensor.shape) != entry.shape:
            raise UserError(
                f"model: its array {name} has the shape {tuple(tensor.shape)}, but {entry.shape} was sent: "
                "give the network that the arrays belong to"
            )


def _in_order(model: nn.Module, layout: Layout) -> list[tuple[str, Tensor]]:
    """The model's arrays in the layout's order; arrays without names ("0", "1", …) are taken in the model's."""
    own, named = model.state_dict(), [entry.name for entry in layout.entries]
    return [(name, own[name]) for name in named] if set(named) == set(own) else list(own.items())


def _as_tensors(data: Any) -> tuple[Tensor, Tensor]:
    """(x, y) as they are, or all batches of a loader, one after the other."""
    batches = [data] if _is_pair(data) or not isinstance(data, Iterable) else list(data)
    if not batches or not all(_is_pair(batch) for batch in batches):
        raise UserError("server_data: should be tensors (x, y), or a DataLoader of such pairs")
    inputs, labels = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
    if len(inputs) != len(labels) or not len(labels):
        raise UserError(
            f"server_data: {len(inputs)} inputs and {len(labels)} labels; should be equally many, at least one"
        )
    return inputs, labels


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def class_rows(labels: Tensor) -> list[Tensor]:
    """The rows of each class; more than `GROUPS` classes share groups. Labels that are no classes: all in one."""
    if labels.dim() != 1 or labels.is_floating_point():
        return [torch.arange(len(labels), device=labels.device)]
    return [(labels % GROUPS == group).nonzero().flatten() for group in (labels % GROUPS).unique().tolist()]


@dataclass
class ServerRound:
    """The server's data at one round's model. Batch-norm statistics stay as they were sent."""

    data: ServerData
    number: int
    sent: State
    _gradient: Tensor | None = None
    _anchor: Anchor | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """What has been asked for of that which depends on the model that was sent alone."""
        found = {"gradient": self._gradient, "anchor": self._anchor}
        return tuple(name for name, value in found.items() if value is not None)

    def gradient(self) -> Tensor:
        """g0 = ∇f0(x_t): the mean cross-entropy's gradient over all of the data, in eval mode (computed once)."""
        if self._gradient is None:
            self._gradient = self._gradient_on(self.data.inputs, self.data.labels)
        return self._gradient

    def anchor(self) -> Anchor:
        """The descent direction of each class at x_t, and the head with its mean input (computed once)."""
        if self._anchor is None:
            inputs, labels = self.data.inputs, self.data.labels
            groups = [(inputs[rows], labels[rows]) for rows in class_rows(labels)]
            directions = torch.stack([self._gradient_on(*group) for group in groups]).neg_()
            self._anchor = Anchor(directions, self._head())
        return self._anchor

    def _gradient_on(self, inputs: Tensor, labels: Tensor) -> Tensor:
        data = self.data
        self._load(data.layout.vector(self.sent))
        names = data.names()

        def of_chunk(network: nn.Module, chunk: Batch) -> tuple[Tensor, ...]:
            own = dict(network.named_parameters())
            parameters = [own[names[entry.name]] for entry in data.layout.trained]
            return torch.autograd.grad(data.summed_loss(network, *chunk), parameters)

        total = [torch.zeros(entry.shape, device=inputs.device) for entry in data.layout.trained]
        for parts in data.in_chunks(of_chunk, inputs, labels):
            for sum_, part in zip(total, parts, strict=True):
                sum_.add_(part)
        return torch.cat([sum_.reshape(-1) for sum_ in total]).div_(len(labels)).cpu()

    def _head(self) -> Head | None:
        """The network's last linear layer; None: it has none, it is not trained, or its inputs are not vectors."""
        data = self.data
        layers = [(name, module) for name, module in data.network.named_modules() if isinstance(module, nn.Linear)]
        called = {own: entry for entry, own in data.names().items()}
        last = layers[-1][0] if layers else ""
        weight = f"{last}.weight".removeprefix(".")  # the network may be that layer itself
        start = data.layout.starts.get(called.get(weight, ""))
        if start is None:
            return None
        self._load(data.layout.vector(self.sent))

        def of_chunk(network: nn.Module, chunk: Batch) -> list[Tensor]:
            sums: list[Tensor] = []
            hook = network.get_submodule(last).register_forward_hook(
                lambda module, inputs, output: sums.extend(one.sum(dim=0) for one in inputs)
            )
            try:
                with torch.no_grad():
                    predict(network, chunk[0])
            finally:
                hook.remove()
            return sums

        seen = [one for sums in data.in_chunks(of_chunk, data.inputs, data.labels) for one in sums]
        if not seen or any(one.dim() != 1 for one in seen):
            return None
        feature = torch.stack(seen).sum(dim=0).div(len(data.labels)).cpu()
        return Head(start, layers[-1][1].out_features, feature)

    def loss(self, vector: Tensor) -> float:
        """f0: the mean loss over all of the data at the model `vector`, in eval mode."""
        data = self.data
        self._load(vector)

        def of_chunk(network: nn.Module, chunk: Batch) -> float:
            with torch.no_grad():
                return float(data.summed_loss(network, *chunk))

        return sum(data.in_chunks(of_chunk, data.inputs, data.labels)) / len(data.labels)

    def learn(self, start: Tensor, rate: float) -> Tensor:
        """`server-epochs` of plain SGD from `start`; the rate scales the clients' weight decay along with the loss."""
        data = self.data
        self._load(start)
        recipe = Recipe(data.epochs, data.fitting_batch_size(), rate, weight_decay=data.weight_decay)
        generator = torch_rng(data.seed, "server-batches", self.number)
        with torch.random.fork_rng():  # the app around us keeps its own random numbers
            seed_torch(seed_for(data.seed, "server-dropout", self.number))
            if data.objective:  # which may draw random numbers for each batch: it is never cut
                train(data.network, data.inputs, data.labels, recipe, generator, data.objective(self.number))
            else:
                own, backward = data.train_loss, data.backward
                train(data.network, data.inputs, data.labels, recipe, generator, own, backward=backward)
        return data.layout.vector(self._state()).cpu()

    def statistics(self, vector: Tensor) -> dict[str, Statistics]:
        """Batch-norm statistics of the server's data at the model `vector`, by layer; none of fewer than two images."""
        data, norms = self.data, tracking_norms(self.data.network)
        if not norms or len(data.labels) < 2:
            return {}
        self._load(vector)
        estimate_statistics(data.network, data.inputs, torch_rng(data.seed, "server-statistics"))
        state = {name: tensor.cpu() for name, tensor in data.network.state_dict().items()}
        return {name: Statistics.of(state, name) for name in norms}

    def _load(self, vector: Tensor) -> None:
        network, names = self.data.network.state_dict(), self.data.names()
        with torch.no_grad():
            for name, tensor in self.data.layout.state(vector, self.sent).items():
                network[names[name]].copy_(tensor)

    def _state(self) -> State:
        """The network's arrays by the layout's names."""
        network = self.data.network.state_dict()
        return {name: network[own] for name, own in self.data.names().items()}


@dataclass(frozen=True)
class ServerLearning:
    """x̄ + Clip_τ(LocalSGD(γ f0, x̄) − x̄): the server learns on its own data. τ 0: no clip."""

    gamma: float
    tau: float
    schedule: str = "constant"
    """`falling`: γ falls to 0 over this many `rounds`; `late`: γ is 0 in the first ones."""
    rounds: int = 15
    stage: ClassVar[str] = "learn"

    @property
    def off(self) -> bool:
        return not self.gamma

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.server is not None, "checked when the strategy was built"
        gamma = self.gamma_in(round.number)
        if not gamma:
            return progress.measure(server_step=0.0)
        middle = round.model + progress.step
        learnt = round.server.learn(middle, gamma * round.lr) - middle
        if self.tau:
            learnt = aggregators.clip(learnt, self.tau)
        length = float(torch.linalg.vector_norm(learnt))
        return replace(progress, step=progress.step + learnt).measure(server_step=length)

    def gamma_in(self, number: int) -> float:
        """γ of this round."""
        if self.schedule == FALLING:
            return self.gamma * max(0.0, 1 - (number - 1) / self.rounds)
        return 0.0 if self.schedule == LATE and number <= self.rounds else self.gamma
