"""Weights for rules that work coordinate by coordinate: how they are capped, and sorted together with the values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require, require_weights
from thistle.strategies.aggregators.network import apply, network

LARGEST = 2**28 - 1
"""All weights together, as whole numbers. A float32 leaves the last 29 bits of a float64 empty; what is below half of
2^29 is rounded away when the value is read back."""
MASK = 2**29 - 1
ROUNDING = 1e-12

Kept = tuple[Tensor, Tensor, Tensor]
"""A chunk's result, and the lowest and highest value that went into it."""


def cap_weights(weights: Tensor, cap: float) -> Tensor:
    """Weights with sum 1, none above `cap`: min(cap, t·w_i) with the t that makes the sum 1.

    Where so few have a weight that `cap` cannot be kept, these weigh the same. Cost n·log n.
    """
    require(0 < cap <= 1, f"the cap of weights must be above 0 and at most 1; got {cap}")
    weights = require_weights(weights, len(weights), weights)
    positive = weights > 0
    if cap * int(positive.sum()) <= 1 + ROUNDING:
        return positive / positive.sum(dtype=torch.float64)
    ordered = weights.sort(descending=True).values
    capped = torch.arange(len(ordered), device=weights.device)
    left = ordered.flip(0).cumsum(0).flip(0)  # the weight of those that are not among the k heaviest
    scale = (1 - cap * capped) / left
    enough = (scale * ordered <= cap * (1 + ROUNDING)) & (left > 0)
    return (weights * scale[enough][0]).clamp(max=cap)


def quantised(weights: Tensor) -> Tensor:
    """Weights with sum 1 as whole numbers: their cumulative sums are exact, in whatever order."""
    return (weights * LARGEST).round().to(torch.int64)


def sort_with(values: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of every column in order, from the lowest, each with the weights that go with its values.

    float32: the weight travels in the unused bits of a float64, so that the sorting network need not know of it.
    """
    if values.dtype != torch.float32:
        ordered = values.sort(dim=0)
        yield from ((row, weights[who]) for row, who in zip(ordered.values, ordered.indices, strict=True))
        return
    packed = values.double()
    packed.view(torch.int64).bitwise_or_(weights[:, None])
    n = len(values)
    rows = apply(network(n, 0, n - 1, inside_sorted=True), packed)
    yield from ((row.float(), row.view(torch.int64) & MASK) for row in rows)


def weighted_middle(values: Tensor, weights: Tensor) -> Kept:
    """Where the cumulative weight passes one half; the mean of two values where it is one half between them."""
    half, slack = int(weights.sum()) // 2, len(weights)
    below = torch.zeros_like(values[0], dtype=torch.int64)
    low = high = values[0]
    for row, share in sort_with(values, weights):
        low = torch.where(below < half - slack, row, low)
        high = torch.where(below <= half + slack, row, high)
        below = below + share
    return (low + high) / 2, low, high


def weighted_inner_mean(values: Tensor, weights: Tensor, beta: float) -> Kept:
    """The mean over the cumulative weights from β to 1 - β; a value at a cut counts by the part that is inside."""
    total = int(weights.sum())
    first = round(beta * total)
    last = total - first
    below, result = (torch.zeros_like(values[0], dtype=kind) for kind in (torch.int64, torch.float64))
    low = high = values[0]
    reached = below.clamp(min=first)
    for row, share in sort_with(values, weights):
        low, high = torch.where(below <= first, row, low), torch.where(below < last, row, high)
        below = below + share
        after = below.clamp(first, last)
        result.addcmul_(row, (after - reached).double(), value=1 / (last - first))
        reached = after
    return result.to(values.dtype), low, high
