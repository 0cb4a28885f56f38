"""Weights for rules that work coordinate by coordinate: how they are capped, and sorted together with the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require, require_weights
from thistle.strategies.aggregators.choice import INTEGERS, take
from thistle.strategies.aggregators.network import apply, network

LARGEST = 2**28 - 1
"""All weights together, as whole numbers. A float32 leaves the last 29 bits of a float64 empty; what is below half of
2^29 is rounded away when the value is read back."""
MASK = 2**29 - 1
ROUNDING = 1e-12

Kept = tuple[Tensor, Tensor, Tensor]
"""A chunk's result, and the lowest and highest value that went into it."""
Reduce = Callable[[Tensor], Kept]
"""From the columns of a chunk to its part of the answer."""


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


class Sorter:
    """Sorts the rows of every column, together with their weights; chunk after chunk in the same memory.

    float32: the weight travels in the unused bits of a float64, so that the sorting network need not know of it.
    """

    def __init__(self, weights: Tensor) -> None:
        n = len(weights)
        self.weights, self.operations = weights, network(n, 0, n - 1, inside_sorted=True)
        self.packed = torch.empty(0, 0, dtype=torch.float64)

    def __call__(self, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """From the lowest to the highest: a row of values and one of weights, to be used before the next."""
        if values.dtype != torch.float32:
            ordered = values.sort(dim=0)
            yield from ((row, self.weights[who]) for row, who in zip(ordered.values, ordered.indices, strict=True))
            return
        size = values.shape[1]
        if self.packed.shape[1] < size:
            self.packed = torch.empty(values.shape, dtype=torch.float64, device=values.device)
        packed, value = self.packed[:, :size].copy_(values), values[0].clone()
        packed.view(torch.int64).bitwise_or_(self.weights[:, None])
        weight = torch.empty_like(value, dtype=torch.int32)
        for row in apply(self.operations, packed):
            yield value.copy_(row), weight.copy_(row.view(torch.int64).bitwise_and_(MASK))


def weighted_middle(weights: Tensor) -> Reduce:
    """Where the cumulative weight passes one half; the mean of two values where it is one half between them."""
    half, slack, in_order = int(weights.sum()) // 2, len(weights), Sorter(weights)

    def reduce(values: Tensor) -> Kept:
        low, high = values[0].clone(), values[0].clone()
        below, wanted, scratch = _integers(3, values)
        for row, weight in in_order(values):
            take(low, row, torch.lt(below, half - slack, out=wanted), scratch)
            take(high, row, torch.le(below, half + slack, out=wanted), scratch)
            below += weight
        return (low + high) / 2, low, high

    return reduce


def weighted_inner_mean(weights: Tensor, beta: float) -> Reduce:
    """The mean over the cumulative weights from β to 1 - β; a value at a cut counts by the part that is inside."""
    total, in_order = int(weights.sum()), Sorter(weights)
    first = round(beta * total)
    last = total - first

    def reduce(values: Tensor) -> Kept:
        low, high = values[0].clone(), values[0].clone()
        result, part = torch.zeros(2, len(low), dtype=torch.float64, device=values.device)
        below, wanted, scratch, before, after = _integers(5, values)
        before += first
        for row, weight in in_order(values):
            take(low, row, torch.le(below, first, out=wanted), scratch)
            take(high, row, torch.lt(below, last, out=wanted), scratch)
            below += weight
            torch.clamp(below, first, last, out=after)
            result.addcmul_(row, part.copy_(before.neg_().add_(after)))
            before, after = after, before
        return result.div_(last - first).to(values.dtype), low, high

    return reduce


def _integers(count: int, values: Tensor) -> Tensor:
    return torch.zeros(count, values.shape[1], dtype=INTEGERS[values.dtype], device=values.device)
