"""Buffers in addition to the trained vector, combined by coordinate so that no minority of clients moves them.

A client's weight does not count here: a client that lies about its buffers may still have sent honest weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thistle.protocol.layout import Entry, Layout, State

MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"
BRANCHES = ("clean", "adversarial")
"""FedRBN's two sets of statistics (thistle.tasks.models.layers.DualBatchNorm), each combined over its own clients."""

SMALLEST = 1e-5
"""What batch norm adds to a variance: below it, variances are all the same."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution in its median distance from the median."""
OUTLYING, LEAST = 5.0, 0.1
"""This many robust deviations from the median is too far; a deviation is at least this much (of a mean: in standard
deviations; of a variance: in its logarithm), because small differences do no harm."""
PLAUSIBLE, RATIO = 4.0, 16.0
"""From a reference: this many standard deviations of the mean, and this ratio of the variances, are plausible."""
STEP, GROWTH = 3.0, 10.0
"""Without a reference: one round moves a mean by this many standard deviations, a variance by this factor."""


@dataclass(frozen=True)
class Statistics:
    """Batch-norm statistics in float64: of one layer (c), or of a layer at several clients (n×c)."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, state: Mapping[str, Tensor], owner: str) -> Statistics:
        return cls(state[f"{owner}.{MEAN}"].double(), state[f"{owner}.{VARIANCE}"].double())

    @classmethod
    def stack(cls, states: Sequence[Mapping[str, Tensor]], owner: str) -> Statistics:
        means, variances = (torch.stack([s[f"{owner}.{name}"] for s in states]).double() for name in (MEAN, VARIANCE))
        return cls(means, variances)

    def named(self, owner: str) -> State:
        """As entries of a state."""
        return {f"{owner}.{MEAN}": self.mean, f"{owner}.{VARIANCE}": self.variance}


def combine_buffers(
    layout: Layout, states: Sequence[State], sent: State, reference: Mapping[str, Statistics] | None = None
) -> State:
    """The buffers of the next model, from those of the clients that are heard and those that were sent.

    Batch norm: see `combine_statistics`; all other buffers: the median. `reference`: the statistics that the server's
    own data give, by layer. Of a dual batch norm's branches, the one that more clients used is the other's reference:
    few may train adversarially, and a single liar could be the only one to use a branch.
    """
    known = dict(reference or {})
    owners = [entry.name.removesuffix(f".{MEAN}") for entry in layout.buffers if entry.name.endswith(f".{MEAN}")]
    electorates = {owner: _electorate(owner, states, sent) for owner in owners}
    combined: State = {}
    for owner in sorted(owners, key=lambda owner: -len(electorates[owner])):  # of two branches the fuller one first
        twin = _twin(owner)
        if twin and not electorates[owner]:
            continue  # a branch that nobody used stays as it was sent
        found = combine_statistics(electorates[owner], owner, sent, known.get(owner))
        if twin in electorates:
            known.setdefault(twin, found)
        combined |= found.named(owner)
    for entry in layout.buffers:
        if entry.name not in combined:
            heard = _electorate(entry.name.rpartition(".")[0], states, sent)
            stack = [state[entry.name] for state in heard]
            combined[entry.name] = median(torch.stack(stack)) if stack else sent[entry.name]
    return {entry.name: _cast(combined[entry.name], entry) for entry in layout.buffers}


def take_reference(layout: Layout, buffers: State, reference: Mapping[str, Statistics]) -> State:
    """The buffers with the reference's statistics in them."""
    found = {
        name: values for owner, statistics in reference.items() for name, values in statistics.named(owner).items()
    }
    return buffers | {entry.name: _cast(found[entry.name], entry) for entry in layout.buffers if entry.name in found}


def combine_statistics(
    states: Sequence[State], owner: str, sent: State, reference: Statistics | None = None
) -> Statistics:
    """Means: their median; variances: their median, plus the spread of the means, (1.4826 · median distance)².

    Both without outliers. With a reference, a client whose mean or variance of a channel is implausible is not heard
    on that channel, and where nobody is left the reference is taken. Without one, a round's change is bounded.
    """
    before = Statistics.of(sent, owner)
    if reference is None:
        return _bounded(_middle(Statistics.stack(states, owner)), before) if states else before
    if not states:
        return reference
    found = _middle(_plausible(Statistics.stack(states, owner), reference))
    return Statistics(
        torch.where(found.mean.isnan(), reference.mean, found.mean),
        torch.where(found.variance.isnan(), reference.variance, found.variance),
    )


def median(stack: Tensor) -> Tensor:
    """Along the first dimension, without NaNs (NaN where there is nothing else); of an even number, the middle.

    Of integers, the lower of the two in the middle.
    """
    ordered = stack.sort(0).values  # NaNs last
    count = (~ordered.isnan()).sum(0, keepdim=True)
    low = ordered.gather(0, ((count - 1) // 2).clamp_min(0))[0]
    if not stack.dtype.is_floating_point:
        return low
    return low + (ordered.gather(0, (count // 2).clamp_max(len(stack) - 1))[0] - low) / 2


def _middle(every: Statistics) -> Statistics:
    every = _agreeing(every)
    centre = median(every.mean)
    spread = NORMAL * median((every.mean - centre).abs())
    return Statistics(centre, median(every.variance) + spread**2)


def _agreeing(every: Statistics) -> Statistics:
    """With NaN for a client's channel where its mean or variance is far from most clients'. Fewer than half are each.

    A median alone would move to the edge of what the honest report when many lie in the same direction.
    """
    deviation = median(every.variance).clamp_min(SMALLEST).sqrt()
    far = _outlying(every.mean, LEAST * deviation)
    far |= _outlying((every.variance + SMALLEST).log(), torch.full_like(deviation, LEAST))
    return Statistics(every.mean.masked_fill(far, torch.nan), every.variance.masked_fill(far, torch.nan))


def _outlying(values: Tensor, least: Tensor) -> Tensor:
    distance = (values - median(values)).abs()
    return distance > OUTLYING * torch.maximum(NORMAL * median(distance), least)


def _plausible(every: Statistics, reference: Statistics) -> Statistics:
    """With NaN for what the reference speaks against. What is constant there may still vary elsewhere."""
    least = reference.variance.clamp_min(SMALLEST)
    most = least.clamp_min(float(least.median()) / 10)
    far = (every.mean - reference.mean).abs() > PLAUSIBLE * most.sqrt()
    far |= (every.variance > RATIO * most) | (every.variance < least / RATIO)
    return Statistics(every.mean.masked_fill(far, torch.nan), every.variance.masked_fill(far, torch.nan))


def _bounded(found: Statistics, before: Statistics) -> Statistics:
    """No farther from what was sent than a round may go; back to zero is always allowed, so that damage heals."""
    variance = before.variance.clamp_min(SMALLEST)
    reach = torch.maximum(STEP * variance.sqrt(), before.mean.abs())
    return Statistics(
        found.mean.clamp(before.mean - reach, before.mean + reach),
        found.variance.clamp(variance / GROWTH, variance * GROWTH),
    )


def _electorate(owner: str, states: Sequence[State], sent: State) -> list[State]:
    """Of a dual batch norm's branch: the clients that used it, whose counter rose. Of anything else: all."""
    if not _twin(owner):
        return list(states)
    counter = f"{owner}.{COUNTER}"
    return [state for state in states if bool(state[counter] > sent[counter])]


def _twin(owner: str) -> str:
    """The other set of statistics of a dual batch norm; empty for all other layers."""
    layer, _, branch = owner.rpartition(".")
    return f"{layer}.{BRANCHES[1 - BRANCHES.index(branch)]}" if branch in BRANCHES else ""


def _cast(values: Tensor, entry: Entry) -> Tensor:
    if entry.dtype.is_floating_point:
        limits = torch.finfo(entry.dtype)
        values = values.clamp(limits.min, limits.max)
    return values.to(entry.dtype)
