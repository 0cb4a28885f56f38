"""Buffers beside the trained vector: combined with the weight the pipeline gave each client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from thistle.protocol.layout import Entry, Layout, State
from torch import Tensor

MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"
BRANCHES = ("clean", "adversarial")
"""FedRBN's two sets of statistics (thistle.tasks.layers.DualBatchNorm): each is combined over its own clients."""


def combine_buffers(layout: Layout, states: Sequence[State], weights: Tensor | None, sent: State) -> State:
    """Floats: weighted mean (a variance: plus the variance of the means); integers: median.

    `weights` None (a rule without client weights) or all zero: coordinate median, resp. what was sent.
    """
    everything = [entry for entry in layout.buffers if not _branch(entry)]
    combined = _combine(everything, states, weights, sent)
    for owner in dict.fromkeys(filter(None, map(_branch, layout.buffers))):
        counter = f"{owner}.{COUNTER}"
        rows = [row for row, state in enumerate(states) if bool(state[counter] > sent[counter])]
        entries = [entry for entry in layout.buffers if _branch(entry) == owner]
        heard = weights[rows] if weights is not None else None if rows else torch.zeros(0)
        combined |= _combine(entries, [states[row] for row in rows], heard, sent)
    return {entry.name: combined[entry.name] for entry in layout.buffers}


def _branch(entry: Entry) -> str:
    """The set of statistics of a dual batch norm that the entry belongs to; empty for all other entries."""
    owner = entry.name.rpartition(".")[0]
    return owner if owner.rpartition(".")[2] in BRANCHES else ""


def _combine(entries: Sequence[Entry], states: Sequence[State], weights: Tensor | None, sent: State) -> State:
    if weights is not None and not bool((weights > 0).any()):
        return {entry.name: sent[entry.name] for entry in entries}
    combined: State = {}
    for entry in entries:
        stack = torch.stack([state[entry.name] for state in states])
        if not entry.dtype.is_floating_point:
            combined[entry.name] = _counter(stack, weights)
        elif weights is None:
            combined[entry.name] = stack.median(0).values
        else:
            value = _average(stack, weights)
            if entry.name.endswith(VARIANCE):
                means = torch.stack([state[entry.name.removesuffix(VARIANCE) + MEAN] for state in states])
                value = value + _average((means - _average(means, weights)) ** 2, weights)
            combined[entry.name] = value.to(entry.dtype)
    return combined


def _average(stack: Tensor, weights: Tensor) -> Tensor:
    share = (weights / weights.sum()).to(torch.float64)
    return torch.tensordot(share, stack.to(torch.float64), dims=1).to(stack.dtype)


def _counter(stack: Tensor, weights: Tensor | None) -> Tensor:
    counted = stack if weights is None else stack[weights > 0]
    return counted.median(0).values
