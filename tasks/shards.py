"""A batch's gradient from fixed parts of it, which several threads may compute at once.

How many parts there are goes by the network and the batch, never by the machine, and their gradients are summed in
their order: the bits do not depend on the number of threads. Small batches stay whole; so do all batches where images
know of each other (batch norm), or where the network has layers that are not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from thistle.tasks.models import predict
from thistle.tasks.models.layers import CosineHead
from thistle.tasks.threads import share_out
from thistle.tasks.training import Loss, at_once

LEAST = 160_000_000
"""Multiplications in a part: some ten milliseconds' worth. With half as many, the parts of a batch of the CIFAR CNN
cost a fifth more than the whole batch; as it is, almost nothing more."""
FEWEST, MOST = 3, 16
"""Parts of a batch; fewer are not worth it."""
LIGHT = 100
"""If a part could have this many images, there is no need to cut."""
LEAST_CHUNK = 8
APART = {
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Dropout, nn.Conv2d, nn.Linear, CosineHead),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.LayerNorm, nn.GroupNorm),
}
"""Layers that look at each image alone, keep nothing of it, and but for dropout draw no random numbers."""

_of_part = threading.local()


class PartDropout(nn.Dropout):
    """Dropout that draws from the generator of the part that this thread computes, if it computes one."""

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Dropout's."""
        generator: torch.Generator | None = getattr(_of_part, "generator", None)
        if generator is None or not self.training or not 0 < self.p < 1:
            return super().forward(input)
        kept = torch.empty_like(input, requires_grad=False).bernoulli_(1 - self.p, generator=generator)
        return input * kept.div_(1 - self.p)


class Shards:
    """How one network's batches are cut, and their gradients. The loss must be a mean over images."""

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        """`network`: its dropout layers are replaced; `example`: one input."""
        self.work = multiplications(network, example)
        self.apart = _can_be_cut(network) and example.device.type == "cpu"
        every = list(network.named_modules(remove_duplicate=False)) if self.apart else []
        drops = {name: module for name, module in every if type(module) is nn.Dropout}
        for name, module in drops.items():
            network.set_submodule(name, PartDropout(module.p).train(module.training))
        self.random = bool(drops)

    def chunk(self, most: int) -> int:
        """How many images go through the network at once in eval mode: `most`, unless they are much work."""
        images = LEAST // max(self.work, 1)
        return most if images >= LIGHT else min(most, max(images, LEAST_CHUNK))

    def parts(self, count: int) -> int:
        """Into how many parts a batch of this many images is cut."""
        parts = min(self.work * count // LEAST, MOST, count)
        return parts if self.apart and parts >= FEWEST else 1

    def __call__(self, loss: Loss, model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        """As `at_once`, in parts."""
        parts = self.parts(len(labels))
        if parts == 1:
            return at_once(loss, model, pixels, labels)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        seeds = torch.randint(2**62, (parts,)).tolist() if self.random else [None] * parts

        def part(item: tuple[Tensor, Tensor, int | None]) -> tuple[Tensor, Sequence[Tensor]]:
            inputs, targets, seed = item
            _of_part.generator = None if seed is None else torch.Generator().manual_seed(seed)
            try:
                value = loss(model, inputs, targets) * (len(targets) / len(labels))
                return value.detach(), torch.autograd.grad(value, parameters)
            finally:
                _of_part.generator = None

        items = zip(pixels.tensor_split(parts), labels.tensor_split(parts), seeds, strict=True)
        found = share_out(lambda: part, items, parts)
        for place, parameter in enumerate(parameters):
            parameter.grad = _sum([gradients[place] for _, gradients in found])
        return _sum([value for value, _ in found])


def _sum(terms: Sequence[Tensor]) -> Tensor:
    """In their order."""
    total = terms[0].clone()
    for term in terms[1:]:
        total.add_(term)
    return total


def _can_be_cut(network: nn.Module) -> bool:
    return all(type(module) in APART and not _has_hooks(module) for module in network.modules())


def _has_hooks(module: nn.Module) -> bool:
    """Whether somebody looks on; torch has no public way to ask."""
    return any(vars(module).get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))


def multiplications(network: nn.Module, example: Tensor) -> int:
    """Of one image's way through the convolutions and matrices of the network."""
    counts: list[int] = []

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1:
            counts.append(weight.numel() * output.numel() // weight.shape[0])

    hooks = [module.register_forward_hook(count) for module in network.modules()]
    training = network.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            predict(network.eval(), example)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    return sum(counts)
