"""An update as singular factors: what a client sends instead of its model when it is asked to.

Each matrix layer (a trained weight of two or more dimensions, reshaped to out × rest) of the update is cut to its
largest singular triples U, σ, V. Everything else (vectors, buffers, layers whose factors would be larger) travels
as it does in a model. Both sides know which is which from the shapes and from the rank that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from thistle.protocol.layout import Entry, Layout, State, to_record, to_state
from thistle.protocol.svd import thin_svd

U, SIGMA, V = "/u", "/sigma", "/v"
"""What follows a layer's name in a record of factors."""


def is_matrix(entry: Entry) -> bool:
    """Whether this array is a layer that can be decomposed."""
    return entry.trained and len(entry.shape) >= 2 and entry.size > 0 and entry.dtype.is_floating_point


def sides(entry: Entry) -> tuple[int, int]:
    """The layer as a matrix: out × rest."""
    return entry.shape[0], entry.size // entry.shape[0]


def layer_rank(fraction: float, rows: int, columns: int) -> int:
    """⌊fraction · full rank⌋ as written (0.29 of 100 is 29), at least 1."""
    return max(1, int(fraction * min(rows, columns) + 1e-9))


def pays(rank: int, rows: int, columns: int) -> bool:
    """Whether factors of this rank are smaller than the matrix."""
    return rank * (rows + columns + 1) < rows * columns


def factored(entry: Entry, fraction: float) -> bool:
    """Whether this array travels as factors when this rank is asked for."""
    return is_matrix(entry) and pays(layer_rank(fraction, *sides(entry)), *sides(entry))


def factor_bytes(layout: Layout, fraction: float) -> int:
    """What the arrays of such a reply weigh at most, without any encoding."""
    total = 0
    for entry in layout.entries:
        rows, columns = sides(entry) if is_matrix(entry) else (0, 0)
        rank = layer_rank(fraction, rows, columns) if factored(entry, fraction) else 0
        total += (rank * (rows + columns + 1) if rank else entry.size) * entry.dtype.itemsize
    return total


def to_factors(state: Mapping[str, Tensor], sent: ArrayRecord, layout: Layout, fraction: float) -> ArrayRecord:
    """A client's reply: the factors of what it changed, and its model's other arrays."""
    before = to_state(sent)
    arrays: State = {}
    for entry in layout.entries:
        after = state[entry.name]
        if not factored(entry, fraction):
            arrays[entry.name] = after
            continue
        update = after.to("cpu", torch.float64) - before[entry.name]
        found = thin_svd(update.reshape(sides(entry)), layer_rank(fraction, *sides(entry)))
        for suffix, part in zip((U, SIGMA, V), found, strict=True):
            arrays[entry.name + suffix] = part.to(entry.dtype)
    return to_record(arrays)
