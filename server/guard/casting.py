"""After the strategy: its aggregate, in the task model's own names, shapes and types."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from thistle.protocol.layout import Entry, Layout, to_array

NONE = "none"
MALFORMED = "aggregate.malformed"
NOT_FINITE = "aggregate.not-finite"


def cast_aggregate(aggregate: ArrayRecord | None, sent: ArrayRecord, layout: Layout) -> tuple[ArrayRecord, str]:
    """The next model and "", or the model that was sent and why it stays."""
    if aggregate is None:
        return sent, NONE
    try:
        values = _values(aggregate, layout)
    except Exception:  # whatever a strategy returns in the place of a model
        return sent, MALFORMED
    if any(values[entry.name].shape != entry.shape for entry in layout.entries):
        return sent, MALFORMED
    cast = {entry.name: _cast(values[entry.name], entry) for entry in layout.entries}
    if not all(_faithful(values[name], array) for name, array in cast.items()):
        return sent, NOT_FINITE
    return ArrayRecord({name: to_array(array) for name, array in cast.items()}), ""


def _values(aggregate: ArrayRecord, layout: Layout) -> dict[str, np.ndarray]:
    """The aggregate's arrays by name; a strategy that lost the names is read by order."""
    names = [entry.name for entry in layout.entries]
    keys = [str(number) for number in range(len(names))] if _is_list(aggregate) else names
    if set(aggregate) != set(keys):
        raise KeyError("other names than the model's")
    values = {name: aggregate[key].numpy() for name, key in zip(names, keys, strict=True)}
    if any(array.dtype.kind not in "fiub" for array in values.values()):
        raise TypeError("something other than numbers")
    return values


def _is_list(record: ArrayRecord) -> bool:
    return list(record) == [str(number) for number in range(len(record))]


def _cast(values: np.ndarray, entry: Entry) -> np.ndarray:
    rounded = np.rint(values) if values.dtype.kind == "f" and not entry.dtype.is_floating_point else values
    with np.errstate(all="ignore"):  # what does not fit is found below
        return np.asarray(rounded).astype(entry.numpy_dtype)  # np.rint makes a scalar of a counter


def _faithful(values: np.ndarray, cast: np.ndarray) -> bool:
    """Everything is finite, before and after, and a counter was only rounded."""
    if cast.dtype.kind == "f":
        return bool(np.isfinite(cast).all())
    return bool(np.isfinite(values).all() and (np.abs(values - cast.astype(np.float64)) <= 1.0).all())
