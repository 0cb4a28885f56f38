"""A reply's arrays, when they are the factors of an update: checked as strictly as a model, then made into one.

Only the factors themselves are trusted: the model that is passed on is the one that was sent plus their product, so
that good factors mean a good update.
"""

from __future__ import annotations

import math

import numpy as np
from flwr.app import ArrayRecord

from thistle.protocol.factors import SIGMA, U, V, factor_bytes, factored, layer_rank, sides
from thistle.protocol.layout import Entry, Layout
from thistle.server.guard.checks import Rejected
from thistle.server.guard.payload import Arrays, Sent, check_distance, check_keys, check_size, check_values, decode

SLACK = 1e-3  # |UᵀU − I|, |VᵀV − I|
LARGEST = 2.0  # |value| in U and V, of which none is above 1 in truth


def read_factors(record: ArrayRecord, layout: Layout, sent: Sent, fraction: float, out: np.ndarray) -> Arrays:
    """The model that the factors make of the one that was sent; the update is written into `out`."""
    expected = [part for entry in layout.entries for part in _parts(record, entry, fraction)]
    check_keys(record, expected)
    check_size(record, expected, factor_bytes(layout, fraction))
    found = {part.name: decode(record[part.name], part) for part in expected}
    for part in expected:
        check_values(found[part.name], part, sent.values.get(part.name))
    values = {}
    for entry in layout.entries:
        if factored(entry, fraction):
            values[entry.name] = _changed(found, entry, sent)
            check_values(values[entry.name], entry, sent.values[entry.name])
        else:
            values[entry.name] = found[entry.name]
    check_distance(math.sqrt(layout.write_change(values, sent.vector, out)), sent)
    return values


def _parts(record: ArrayRecord, entry: Entry, fraction: float) -> list[Entry]:
    """The arrays that are expected for one array of the model; their rank is what σ declares, up to what was asked."""
    if not factored(entry, fraction):
        return [entry]
    rows, columns = sides(entry)
    most = layer_rank(fraction, rows, columns)
    sigma = record.get(entry.name + SIGMA)
    if sigma is None:
        raise Rejected(f"keys: {entry.name + SIGMA} is missing")
    shape = getattr(sigma, "shape", None)
    if type(shape) is not tuple or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
        raise Rejected(f"shape: {entry.name + SIGMA} should have one dimension")
    if shape[0] > most:
        raise Rejected(f"factors: {entry.name} has rank {shape[0]}, at most {most} was asked for")
    shapes = {U: (rows, shape[0]), SIGMA: (shape[0],), V: (columns, shape[0])}
    return [Entry(entry.name + suffix, shape, entry.dtype, trained=True) for suffix, shape in shapes.items()]


def _changed(found: dict[str, np.ndarray], entry: Entry, sent: Sent) -> np.ndarray:
    """The layer that was sent, plus U·diag(σ)·Vᵀ."""
    u, sigma, v = (found[entry.name + suffix] for suffix in (U, SIGMA, V))
    for suffix, part in ((U, u), (V, v)):
        largest = float(np.abs(part).max(initial=0.0))
        if largest > LARGEST:
            raise Rejected(f"magnitude: {entry.name + suffix} has values up to {largest:.6g}, none can be above 1")
        error = float(np.abs(part.T @ part - np.eye(part.shape[1], dtype=part.dtype)).max(initial=0.0))
        if not error <= SLACK:
            raise Rejected(f"factors: {entry.name + suffix} is not orthonormal, by {error:.3g}")
    if sigma.size and not (sigma[-1] >= 0 and bool((sigma[:-1] >= sigma[1:]).all())):
        raise Rejected(f"factors: {entry.name + SIGMA} is not descending to 0 or above")
    update = ((u * sigma) @ v.T).reshape(entry.shape)
    return np.asarray(sent.values[entry.name] + update, dtype=entry.numpy_dtype)
