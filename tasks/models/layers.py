"""Layers that a way of training asks for, put into a network in place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from thistle.experiments import settings
from thistle.experiments.errors import UserError

SCALE = 10.0


class CosineHead(nn.Module):
    """Logits 10·cos(feature, w_c): RoBal's classifier (Wu et al. 2021), whose class weights have no lengths to skew."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, width))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, features: Tensor) -> Tensor:
        return SCALE * linear(normalize(features), normalize(self.weight))


class DualBatchNorm(nn.Module):
    """Batch norm with one scale and shift, and two sets of statistics: of clean and of adversarial images.

    FedRBN (Hong et al. 2021). Adversarial statistics are used unless told otherwise: in use nobody knows which an
    image is.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        make = lambda: nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum, affine=False)  # noqa: E731
        self.clean, self.adversarial = make(), make()
        self.use_clean = False

    def forward(self, pixels: Tensor) -> Tensor:
        normed: Tensor = (self.clean if self.use_clean else self.adversarial)(pixels)
        return normed * self.weight[:, None, None] + self.bias[:, None, None]


@contextmanager
def clean_statistics(network: nn.Module) -> Iterator[None]:
    """Inside, dual batch norms treat images as clean. Networks without any are left alone."""
    duals = [module for module in network.modules() if isinstance(module, DualBatchNorm)]
    for dual in duals:
        dual.use_clean = True
    try:
        yield
    finally:
        for dual in duals:
            dual.use_clean = False


def head_name(network: nn.Module) -> str:
    """The name of the last linear layer: what turns features into logits."""
    return [name for name, module in network.named_modules() if isinstance(module, nn.Linear | CosineHead)][-1]


@torch.no_grad()
def penultimate(network: nn.Module, pixels: Tensor, batch_size: int = 500) -> Tensor:
    """What goes into the last linear layer: n × width, in eval mode."""
    seen: list[Tensor] = []
    handle = network.get_submodule(head_name(network)).register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].flatten(1))
    )
    network.eval()
    try:
        for chunk in pixels.split(batch_size):
            network(chunk)
    finally:
        handle.remove()
    return torch.cat(seen)


def fit_network(network: nn.Module, wanted: settings.Network) -> nn.Module:
    """The same network with the head and the batch norms that are wanted."""
    if wanted.head == "cosine":
        linears = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
        if not linears:
            raise UserError(f"client.calibration = robal: model.name = {wanted.name} has no linear layer to replace")
        name = linears[-1]
        old = network.get_submodule(name)
        assert isinstance(old, nn.Linear)
        network.set_submodule(name, CosineHead(old.in_features, old.out_features))
    if wanted.norm == "dual":
        norms = [name for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)]
        if not norms:
            raise UserError(
                f"client.objective = fedrbn: keeps batch-norm statistics apart, and model.name = {wanted.name} "
                "has no batch norm; use vgg8 or resnet18"
            )
        for name in norms:
            norm = network.get_submodule(name)
            assert isinstance(norm, nn.BatchNorm2d)
            network.set_submodule(name, DualBatchNorm(norm))
    return network
