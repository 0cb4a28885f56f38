"""Rules for numpy's users: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class NumpyAggregate:
    """An `Aggregate` whose parts are numpy arrays: the answer to updates that are one."""

    vector: np.ndarray
    weights: np.ndarray
    scores: np.ndarray | None = None


class Rule(Protocol[P]):
    """A rule on n x d tensors, and on n x d numpy arrays."""

    @overload
    def __call__(self, updates: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Aggregate: ...

    @overload
    def __call__(self, updates: np.ndarray, /, *args: P.args, **kwargs: P.kwargs) -> NumpyAggregate: ...


def accepts_numpy(rule: Callable[Concatenate[Tensor, P], Aggregate]) -> Rule[P]:
    """The rule itself for tensors. Where updates are a numpy array, other arrays may come along, and the answer is of
    arrays too. The array's memory is used as it is where torch can read it."""

    @wraps(rule)
    def either(updates: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(updates, np.ndarray):
            return rule(updates, *args, **kwargs)
        others = {name: _tensor(value) for name, value in kwargs.items()}
        found = rule(_tensor(updates), *map(_tensor, args), **others)  # type: ignore[arg-type]
        scores = None if found.scores is None else found.scores.numpy()
        return NumpyAggregate(found.vector.numpy(), found.weights.numpy(), scores)

    return cast(Rule[P], either)


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    readable = value if value.flags.writeable and value.dtype.isnative and min(value.strides, default=0) >= 0 else None
    return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")) if readable is None else readable)
