"""A model as Flower sees it (named arrays) and as strategies see it (one flat vector of what is trained).

Buffers (batch-norm statistics, counters) travel beside the vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from itertools import accumulate
from math import prod

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor, nn

State = dict[str, Tensor]

NUMPY = "numpy.ndarray"
"""How Flower calls an array that np.save has written."""
NPY = b"\x93NUMPY\x01\x00"
"""How those bytes begin."""
FORTRAN = b"'fortran_order': True"
"""In their header: the values are in the other order."""
BLOCK = 1 << 15
"""Values that are worked on together."""
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of batch norm's buffers end."""
CONTROL = "control"
"""SCAFFOLD: the record, and the one array in it, with which a request carries c − c_i as a flat vector."""


@dataclass(frozen=True)
class Entry:
    """One named array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool
    any_order: bool = False
    """A reply may hold it in Fortran order: other people's models have transposed weights."""

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        return torch.empty(0, dtype=self.dtype).numpy().dtype

    @cached_property
    def declared(self) -> str:
        """Its type as Flower writes it."""
        return str(self.numpy_dtype)

    @cached_property
    def header(self) -> bytes:
        """What np.save writes before its values."""
        return npy_header(self.numpy_dtype, self.shape)


@dataclass(frozen=True)
class Layout:
    """The names, shapes and types of a model's arrays, in its own order."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        return cls(
            tuple(
                Entry(name, tuple(tensor.shape), tensor.dtype, name in trained)
                for name, tensor in model.state_dict().items()
            )
        )

    @classmethod
    def of_record(cls, record: ArrayRecord, model: nn.Module | None = None) -> Layout:
        """Of any app's arrays. Without a model, buffers are told by their type (no floats) and batch norm's names."""
        buffers = None if model is None else _buffers_in(record, model)
        entries = []
        for name, array in record.items():
            dtype = _torch_dtype(name, array.dtype)
            named = name.endswith(BUFFERS) if buffers is None else name in buffers
            entries.append(Entry(name, tuple(array.shape), dtype, dtype.is_floating_point and not named, True))
        return cls(tuple(entries))

    @cached_property
    def trained(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.trained]

    @cached_property
    def buffers(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.trained]

    @cached_property
    def starts(self) -> dict[str, int]:
        """Where each trained array begins in the flat vector."""
        ends = accumulate(entry.size for entry in self.trained)
        return {entry.name: end - entry.size for entry, end in zip(self.trained, ends, strict=True)}

    @property
    def size(self) -> int:
        """Entries of the flat vector."""
        return sum(entry.size for entry in self.trained)

    @property
    def num_bytes(self) -> int:
        """What the arrays weigh, without any encoding."""
        return sum(entry.size * entry.dtype.itemsize for entry in self.entries)

    def vector(self, state: Mapping[str, Tensor]) -> Tensor:
        """The trained entries of a state as one float32 vector."""
        vector = torch.empty(self.size)
        start = 0
        for entry in self.trained:
            vector[start : start + entry.size] = state[entry.name].reshape(-1)
            start += entry.size
        return vector

    def write_change(self, arrays: Mapping[str, np.ndarray], since: np.ndarray, out: np.ndarray) -> float:
        """Write the trained arrays minus the vector `since` into `out`; returns the change's squared length.

        In blocks that stay in the cache, each summed in float32, and their sums in float64.
        """
        start, total = 0, 0.0
        for entry in self.trained:
            values = arrays[entry.name].reshape(-1)
            for low in range(0, entry.size, BLOCK):
                high = min(low + BLOCK, entry.size)
                place = slice(start + low, start + high)
                block = np.subtract(values[low:high], since[place], out=out[place], dtype=np.float32)
                total += float(np.dot(block, block))
            start += entry.size
        return total

    def state(self, vector: Tensor, buffers: Mapping[str, Tensor]) -> State:
        """The state whose trained entries are `vector`."""
        state, start = {}, 0
        for entry in self.entries:
            if entry.trained:
                state[entry.name] = vector[start : start + entry.size].reshape(entry.shape).to(entry.dtype)
                start += entry.size
            else:
                state[entry.name] = buffers[entry.name]
        return state


def _torch_dtype(name: str, declared: str) -> torch.dtype:
    try:
        dtype = torch.from_numpy(np.empty(0, np.dtype(declared))).dtype
    except TypeError:
        raise ValueError(f"array {name!r} is of type {declared}: torch has no such type") from None
    if dtype.is_complex:
        raise ValueError(f"array {name!r} is of type {declared}: only real numbers can be checked")
    return dtype


def _buffers_in(record: ArrayRecord, model: nn.Module) -> set[str]:
    """The record's names of what the model does not train; a record without names ("0", "1", …) is read by order."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    names, keys = list(model.state_dict()), list(record)
    if keys == [str(number) for number in range(len(names))]:
        return {key for key, name in zip(keys, names, strict=True) if name not in trained}
    if set(keys) != set(names):
        raise ValueError(
            f"the model's {len(names)} arrays do not match the {len(keys)} that are sent: give the model they belong to"
        )
    return set(keys) - trained


def to_record(state: Mapping[str, Tensor]) -> ArrayRecord:
    """A state as Flower's record."""
    return ArrayRecord({name: to_array(_as_numpy(tensor)) for name, tensor in state.items()})


def to_array(values: np.ndarray) -> Array:
    """What `Array(values)` makes, byte for byte, at the price of one copy (np.save takes ten times as long)."""
    contiguous = np.ascontiguousarray(values)
    data = b"".join((npy_header(values.dtype, values.shape), contiguous.data))
    return Array(str(values.dtype), values.shape, NUMPY, data)


@cache
def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """What np.save writes before the values of an array in C order."""
    file = BytesIO()
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, header)
    return file.getvalue()


def as_array(values: np.ndarray) -> Array:
    """The bytes that a checked array is a view of (server/guard/payload.py), or else what `to_array` makes of it."""
    data = values.base
    return Array(str(values.dtype), values.shape, NUMPY, data) if isinstance(data, bytes) else to_array(values)


def _as_numpy(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).reshape(tensor.shape)


def view(array: Array) -> np.ndarray:
    """The values of an array that we made or checked, where they lie: read only, nothing is copied."""
    data = array.data
    if array.stype != NUMPY or data[:8] != NPY:
        return array.numpy()
    start = 10 + int.from_bytes(data[8:10], "little")  # format 1.0: magic, version, length of the header, header
    if FORTRAN in data[10:start]:  # the transposed weights of other people's models
        return array.numpy()
    return np.frombuffer(data, np.dtype(array.dtype), offset=start).reshape(array.shape)


def to_state(record: ArrayRecord) -> State:
    """Flower's record as a state (copies: nothing is shared with the record)."""
    return {name: torch.from_numpy(np.array(view(array))) for name, array in record.items()}


def load_record(model: nn.Module, record: ArrayRecord) -> None:
    """Write a record into a model, in place."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(view(record[name]))))


def sha256(state: Mapping[str, Tensor]) -> str:
    """A fingerprint of a model: names, types, shapes and every bit of its values."""
    digest = hashlib.sha256()
    for name, tensor in state.items():
        array = _as_numpy(tensor)
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def record_bytes(records: Iterable[ArrayRecord]) -> int:
    """Encoded bytes of the arrays in these records."""
    return sum(len(array.data) for record in records for array in record.values())
