"""What a strategy remembers from round to round, as tensors and plain values for the checkpoint.

Works on any Flower strategy, ours included: FedAdam's moments, an adaptive clipping norm, a pipeline's
reputation are all attributes. Attributes of other kinds (functions, steps) are made by the constructor
and never change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

Arrays = dict[str, np.ndarray]


def recall(strategy: Strategy) -> tuple[Arrays, dict[str, Any]]:
    """(arrays by "attribute/kind/name", plain attributes)."""
    arrays: Arrays = {}
    plain: dict[str, Any] = {}
    for name, value in vars(_owner(strategy)).items():
        if name.startswith("_"):  # made anew in every round
            continue
        if value is None or isinstance(value, bool | int | float | str):
            plain[name] = value
        elif isinstance(value, np.ndarray):
            arrays[f"{name}/array/"] = value
        elif isinstance(value, ArrayRecord):
            named = {key: array.numpy() for key, array in value.items()}
            arrays |= {f"{name}/record/{index:06d}/{key}": item for index, (key, item) in enumerate(named.items())}
        elif isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
            kind = "numbered" if all(type(key) is int for key in value) else "dict"
            arrays |= {f"{name}/{kind}/{key}": item for key, item in value.items()}
        elif isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
            arrays |= {f"{name}/list/{index:06d}": item for index, item in enumerate(value)}
    return arrays, plain


def remind(strategy: Strategy, arrays: Arrays, plain: dict[str, Any]) -> None:
    """Put back what `recall` gave."""
    strategy = _owner(strategy)
    for name, value in plain.items():
        setattr(strategy, name, value)
    groups: dict[tuple[str, str], Arrays] = {}
    for path, array in arrays.items():
        name, kind, key = path.split("/", 2)
        groups.setdefault((name, kind), {})[key] = array
    for (name, kind), group in groups.items():
        setattr(strategy, name, _rebuild(kind, group))


def _owner(strategy: Strategy) -> Strategy:
    """Whose memory it is: the strategy's, or that of the one it wraps."""
    return getattr(strategy, "inner", strategy)


def _rebuild(kind: str, group: Arrays) -> Any:
    if kind == "record":  # whose order matters to some of Flower's strategies
        return ArrayRecord({key.partition("/")[2]: Array(group[key]) for key in sorted(group)})
    if kind == "dict":
        return group
    if kind == "numbered":
        return {int(key): array for key, array in group.items()}
    if kind == "list":
        return [group[key] for key in sorted(group)]
    return group[""]
