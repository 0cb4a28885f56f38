"""A reply's arrays, when they are a model: checked against the model that was sent, and read in its order.

Nothing is allocated by what a reply says: an npy header is read from a bounded prefix of the bytes, and the values
are looked at where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy

from thistle.protocol.layout import NUMPY, Entry, Layout, record_bytes, view
from thistle.server.guard.checks import Rejected

LARGEST = 1e6  # |value| in floating arrays, unless what was sent is as large
FARTHEST = 100.0  # ‖Δ‖, in units of max(1, ‖x_t‖)
MOST_COUNTED = 2**31  # by how much a counter may rise in a round

HEADER = 1024  # bytes; np.save writes 128 for up to some ten dimensions

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Sent:
    """The model that was sent, decoded once a round."""

    values: Arrays
    vector: np.ndarray
    """What is trained, as one float32 vector."""
    norm: float
    largest: float
    """The largest |value| of what is trained."""
    num_bytes: int

    @classmethod
    def of(cls, record: ArrayRecord, layout: Layout) -> Sent:
        values = {entry.name: view(record[entry.name]) for entry in layout.entries}
        trained = [values[entry.name].reshape(-1) for entry in layout.trained]
        squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in trained)
        largest = max((float(np.abs(array).max(initial=0.0)) for array in trained), default=0.0)
        vector = np.concatenate([np.empty(0, np.float32), *trained], dtype=np.float32, casting="same_kind")
        return cls(values, vector, math.sqrt(squares), largest, record_bytes([record]))


def read_model(record: ArrayRecord, layout: Layout, sent: Sent, out: np.ndarray) -> Arrays:
    """The model's arrays, views of the bytes as they came; its update is written into `out`."""
    check_keys(record, layout.entries)
    check_size(record, layout.entries, sent.num_bytes)
    values = {entry.name: decode(record[entry.name], entry) for entry in layout.entries}
    distance = math.sqrt(layout.write_change(values, sent.vector, out))
    near = sent.largest + distance <= LARGEST / 2  # then no value can be too large, or not finite
    for entry in layout.buffers if near else layout.entries:
        if not _unchanged(record[entry.name], entry, sent):
            check_values(values[entry.name], entry, sent.values[entry.name])
    check_distance(distance, sent)
    return values


def _unchanged(array: Array, entry: Entry, sent: Sent) -> bool:
    """A buffer that is bit for bit what was sent: a mask of -inf, say, is the server's own."""
    return not entry.trained and array.data[-sent.values[entry.name].nbytes :] == sent.values[entry.name].tobytes()


def check_keys(record: ArrayRecord, entries: Sequence[Entry]) -> None:
    """Exactly the arrays that are expected."""
    for entry in entries:
        if entry.name not in record:
            raise Rejected(f"keys: {entry.name} is missing")
    if len(record) != len(entries):
        raise Rejected(f"keys: {len(record)} arrays instead of {len(entries)}")


def check_size(record: ArrayRecord, entries: Sequence[Entry], expected: int) -> None:
    """Arrays of bytes, together hardly more of them than are expected."""
    size = 0
    for entry in entries:
        array = record[entry.name]
        if type(array) is not Array or type(array.data) is not bytes:
            raise Rejected(f"encoding: {entry.name} is not an array of bytes")
        size += len(array.data)
    limit = int(expected * 1.1) + 64_000
    if size > limit:
        raise Rejected(f"size: {size} bytes, at most {limit} are expected")


def decode(array: Array, entry: Entry) -> np.ndarray:
    """A view of the array's bytes, after its declaration and its npy header were found to be the expected ones."""
    name, dtype = entry.name, entry.numpy_dtype
    if array.stype != NUMPY:
        raise Rejected(f"encoding: {name} is not stored as {NUMPY}")
    shape, fortran_order, encoded, offset = _header(array.data, entry)
    if array.shape != shape or array.dtype != (entry.declared if encoded is dtype else str(encoded)):
        declared = f"{_shape(array.shape)} {array.dtype}"
        raise Rejected(f"encoding: {name} encodes {_shape(shape)} {encoded} but declares {declared}")
    if shape != entry.shape:
        raise Rejected(f"shape: {name} is {_shape(shape)} instead of {entry.shape}")
    if encoded != dtype:
        raise Rejected(f"dtype: {name} is {encoded} instead of {dtype}")
    if fortran_order and not entry.any_order:
        raise Rejected(f"encoding: {name} is in Fortran order")
    if (size := len(array.data) - offset) != entry.size * dtype.itemsize:
        raise Rejected(f"encoding: {name} has {size} bytes of values instead of {entry.size * dtype.itemsize}")
    return np.ndarray(entry.shape, dtype, array.data, offset, order="F" if fortran_order else "C")


def _header(data: bytes, entry: Entry) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and length of an npy header (format 1.0); the usual one needs no parsing (50 µs)."""
    if data.startswith(entry.header):
        return entry.shape, False, entry.numpy_dtype, len(entry.header)
    prefix = BytesIO(data[:HEADER])
    try:
        if npy.read_magic(prefix) != (1, 0):
            raise ValueError("np.save writes format 1.0 for every plain array")
        shape, fortran_order, dtype = npy.read_array_header_1_0(prefix, max_header_size=HEADER)
    except Exception as error:
        raise Rejected(f"encoding: {entry.name} has no npy 1.0 header") from error
    return shape, fortran_order, dtype, prefix.tell()


def check_values(values: np.ndarray, entry: Entry, sent: np.ndarray | None = None) -> None:
    """Finite, not absurdly large; variances and counters not below zero.

    What was sent may be damaged. An honest client replies to it with values of that size, and must not be rejected
    for what others did: so the bounds grow with what was sent.
    """
    if not entry.size:
        return
    low, high = values.min().item(), values.max().item()  # nan if any value is
    least, most = (0, 0) if sent is None else (sent.min().item(), sent.max().item())
    if not entry.dtype.is_floating_point:
        if low < min(0, least) or high > max(0, most) + MOST_COUNTED:
            raise Rejected(f"buffers: {entry.name} has values from {low} to {high}")
    elif not (math.isfinite(low) and math.isfinite(high)):
        raise Rejected(f"not finite: {entry.name}")
    elif max(-low, high) > max(LARGEST, 2 * max(-least, most)):
        raise Rejected(f"magnitude: {entry.name} has values from {low:.6g} to {high:.6g}")
    elif low < 0 and not entry.trained and entry.name.endswith("running_var"):
        raise Rejected(f"buffers: {entry.name} has a variance of {low:.6g}")


def check_distance(distance: float, sent: Sent) -> None:
    """The update is not absurdly long, measured by the model that was sent."""
    limit = FARTHEST * max(1.0, sent.norm)
    if not distance <= limit:
        raise Rejected(f"magnitude: the update's norm is {distance:.6g}, at most {limit:.6g} is expected")


def _shape(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f"{len(shape)} dimensions"
