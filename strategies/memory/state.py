"""What a strategy of Flower's remembers from round to round, as arrays and plain values for the checkpoint.

FedAdam's moments, an adaptive clipping norm: all are attributes. Attributes of other kinds (functions) are made by the
constructor and never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

Arrays = dict[str, np.ndarray]
State = dict[str, Any]
"""Arrays by "attribute/kind/name", and plain attributes by name."""


def state_dict(strategy: Strategy) -> State:
    """Everything that the next rounds depend on; names that begin with _ are made again in every round."""
    state: State = {}
    for name, value in vars(strategy).items():
        if not name.startswith("_"):
            state |= _saved(name, value)
    return state


def _saved(name: str, value: Any) -> State:
    """An attribute as it can be written down; nothing, if it cannot."""
    if value is None or isinstance(value, bool | int | float | str):
        return {name: value}
    if isinstance(value, np.ndarray):
        return {f"{name}/array/": value}
    if isinstance(value, ArrayRecord):
        named = [(key, array.numpy()) for key, array in value.items()]
        return {f"{name}/record/{index:06d}/{key}": item for index, (key, item) in enumerate(named)}
    if isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
        kind = "numbered" if all(type(key) is int for key in value) else "dict"
        return {f"{name}/{kind}/{key}": item for key, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
        return {f"{name}/list/{index:06d}": item for index, item in enumerate(value)}
    return {}


def load_state_dict(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Put back what `state_dict` gave."""
    groups: dict[tuple[str, str], Arrays] = {}
    for path, value in state.items():
        if isinstance(value, np.ndarray):
            name, kind, key = path.split("/", 2)
            groups.setdefault((name, kind), {})[key] = value
        else:
            setattr(strategy, path, value)
    for (name, kind), group in groups.items():
        setattr(strategy, name, _rebuild(kind, group))


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
