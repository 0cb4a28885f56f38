"""The server's own data at work: its gradient, and local SGD on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thistle.experiments.randomness import seed_for, seed_torch, torch_rng
from thistle.protocol.layout import Layout, State
from thistle.strategies.buffers import Statistics
from thistle.tasks.models import predict
from thistle.tasks.statistics import estimate_statistics, tracking_norms
from thistle.tasks.training import Recipe, train

CHUNK = 500


@dataclass
class ServerData:
    """Images and labels that the server holds itself, and a network to try them on."""

    network: nn.Module
    layout: Layout
    pixels: Tensor
    labels: Tensor
    epochs: int
    batch_size: int
    weight_decay: float
    seed: int


@dataclass
class ServerRound:
    """The server's data at one round's model. Batch-norm statistics stay as they were sent."""

    data: ServerData
    number: int
    sent: State
    _gradient: Tensor | None = None

    @property
    def asked(self) -> bool:
        """Whether the gradient has been asked for."""
        return self._gradient is not None

    def gradient(self) -> Tensor:
        """g0 = ∇f0(x_t): the mean cross-entropy's gradient over all of the data, in eval mode (computed once)."""
        if self._gradient is None:
            self._gradient = self._compute_gradient()
        return self._gradient

    def _compute_gradient(self) -> Tensor:
        data = self.data
        self._load(data.layout.vector(self.sent))
        data.network.eval()
        parameters = [p for p in data.network.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in parameters]
        for pixels, labels in zip(data.pixels.split(CHUNK), data.labels.split(CHUNK), strict=True):
            loss = cross_entropy(predict(data.network, pixels), labels, reduction="sum")
            for sum_, part in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                sum_.add_(part)
        return torch.cat([sum_.reshape(-1) for sum_ in total]).div_(len(data.labels)).cpu()

    def learn(self, start: Tensor, rate: float) -> Tensor:
        """`server-epochs` of plain SGD from `start`; the rate scales the clients' weight decay along with the loss."""
        data = self.data
        self._load(start)
        seed_torch(seed_for(data.seed, "server-dropout", self.number))
        recipe = Recipe(data.epochs, data.batch_size, rate, weight_decay=data.weight_decay)
        generator = torch_rng(data.seed, "server-batches", self.number)
        train(data.network, data.pixels, data.labels, recipe, generator)
        return data.layout.vector(data.network.state_dict()).cpu()

    def statistics(self, vector: Tensor) -> dict[str, Statistics]:
        """Batch-norm statistics of the server's data at the model `vector`, by layer; none of fewer than two images."""
        data, norms = self.data, tracking_norms(self.data.network)
        if not norms or len(data.labels) < 2:
            return {}
        self._load(vector)
        estimate_statistics(data.network, data.pixels, torch_rng(data.seed, "server-statistics"))
        state = {name: tensor.cpu() for name, tensor in data.network.state_dict().items()}
        return {name: Statistics.of(state, name) for name in norms}

    def _load(self, vector: Tensor) -> None:
        network = self.data.network.state_dict()
        with torch.no_grad():
            for name, tensor in self.data.layout.state(vector, self.sent).items():
                network[name].copy_(tensor)
