"""Batch-norm statistics estimated again from images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from thistle.tasks.models import predict
from thistle.tasks.models.layers import clean_statistics

CHUNK = 500


def tracking_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms that keep statistics, by name."""
    norms = {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
    return {name: norm for name, norm in norms.items() if norm.track_running_stats}


@torch.no_grad()
def estimate_statistics(network: nn.Module, pixels: Tensor, generator: torch.Generator) -> None:
    """Replace the statistics by those of these images (two or more), a dual batch norm's for both of its branches.

    One pass in random order, the plain average over its batches; nothing else in the network is in training mode.
    """
    norms = tracking_norms(network)
    momenta = {name: norm.momentum for name, norm in norms.items()}
    network.eval()
    for norm in norms.values():
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None
    order = torch.randperm(len(pixels), generator=generator)
    with clean_statistics(network):
        for chunk in order.tensor_split(-(-len(order) // CHUNK)):
            predict(network, pixels[chunk.to(pixels.device)])
    for name, norm in norms.items():
        norm.momentum = momenta[name]
        layer, _, branch = name.rpartition(".")
        if branch == "adversarial" and f"{layer}.clean" in norms:
            norm.load_state_dict(norms[f"{layer}.clean"].state_dict())
    network.eval()
