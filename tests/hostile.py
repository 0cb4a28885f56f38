"""Hostile replies: each takes an honest reply's content and returns what an attacker sends instead.

`HOSTILE[name]` is (function, the first word(s) of the guard's reason). The honest content holds "arrays" (a model, for
`negative variance` one with batch norm) and "metrics" (with num-examples and loss); it is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy

Attack = Callable[[RecordDict], RecordDict]

HOSTILE: dict[str, tuple[Attack, str]] = {}


def hostile(name: str, reason: str) -> Callable[[Attack], Attack]:
    def register(attack: Attack) -> Attack:
        HOSTILE[name] = attack, reason
        return attack

    return register


def arrays_of(content: RecordDict) -> dict[str, Array]:
    return dict(content.array_records["arrays"])


def with_arrays(content: RecordDict, arrays: dict[str, Array]) -> RecordDict:
    return RecordDict({**content, "arrays": ArrayRecord(arrays)})


def with_array(content: RecordDict, name: str, array: Array) -> RecordDict:
    return with_arrays(content, {**arrays_of(content), name: array})


def with_metric(content: RecordDict, name: str, value: int | float | list[int]) -> RecordDict:
    return RecordDict({**content, "metrics": MetricRecord({**content.metric_records["metrics"], name: value})})


def first(content: RecordDict) -> tuple[str, np.ndarray]:
    """The first array of more than one dimension: a weight, in any model."""
    return next((name, array.numpy()) for name, array in arrays_of(content).items() if len(array.shape) > 1)


def ending(content: RecordDict, suffix: str) -> tuple[str, np.ndarray]:
    return next((name, array.numpy()) for name, array in arrays_of(content).items() if name.endswith(suffix))


def header(shape: tuple[int, ...], dtype: str = "<f4", fortran_order: bool = False) -> bytes:
    """An npy header, whatever follows it."""
    file = BytesIO()
    npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": fortran_order, "shape": shape})
    return file.getvalue()


def _one_value(value: float) -> Attack:
    def attack(content: RecordDict) -> RecordDict:
        name, weight = first(content)
        weight.flat[-1] = value
        return with_array(content, name, Array(weight))

    return attack


def _examples(value: int | float | list[int]) -> Attack:
    return lambda content: with_metric(content, "num-examples", value)


def _metrics_as_config(value: str | bool) -> Attack:
    return lambda content: RecordDict({**content, "metrics": ConfigRecord({"num-examples": value})})


HOSTILE |= {
    "NaN": (_one_value(float("nan")), "not finite"),
    "Inf": (_one_value(float("inf")), "not finite"),
    "minus Inf": (_one_value(float("-inf")), "not finite"),
    "1e30": (_one_value(1e30), "magnitude"),
    "num-examples 0": (_examples(0), "num-examples"),
    "num-examples -90": (_examples(-90), "num-examples"),
    "num-examples 1e15": (_examples(10**15), "num-examples"),
    "num-examples NaN": (_examples(float("nan")), "num-examples"),
    "num-examples a float": (_examples(10.0), "num-examples"),
    "num-examples a list": (_examples([10, 10]), "num-examples"),
    "loss 1e30": (lambda content: with_metric(content, "loss", 1e30), "metrics"),
    "loss -1": (lambda content: with_metric(content, "loss", -1.0), "metrics"),
    "loss NaN": (lambda content: with_metric(content, "loss", float("nan")), "metrics"),
    "loss a list": (lambda content: with_metric(content, "loss", [1, 2]), "metrics"),
    "strings for metrics": (_metrics_as_config("<b>many</b>"), "records"),
    "booleans for metrics": (_metrics_as_config(True), "records"),
}


@hostile("far away", "magnitude")
def far_away(content: RecordDict) -> RecordDict:
    """Every value is bearable, the whole is not."""
    name, weight = first(content)
    return with_array(content, name, Array(np.full_like(weight, 9e5)))


@hostile("missing key", "keys")
def missing_key(content: RecordDict) -> RecordDict:
    name, _ = first(content)
    return with_arrays(content, {key: array for key, array in arrays_of(content).items() if key != name})


@hostile("extra key", "keys")
def extra_key(content: RecordDict) -> RecordDict:
    return with_array(content, "x" * 100_000, Array(np.zeros(1, np.float32)))


@hostile("another key", "keys")
def another_key(content: RecordDict) -> RecordDict:
    return extra_key(missing_key(content))


@hostile("wrong shape", "shape")
def wrong_shape(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    return with_array(content, name, Array(weight.reshape(-1)))


@hostile("broadcast shape", "shape")
def broadcast_shape(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    return with_array(content, name, Array(weight.reshape(-1)[:1]))


@hostile("wrong dtype", "dtype")
def wrong_dtype(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    return with_array(content, name, Array(weight.astype(np.float64)))


@hostile("big-endian", "dtype")
def big_endian(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    return with_array(content, name, Array(weight.astype(">f4")))


@hostile("empty record", "keys")
def empty_record(content: RecordDict) -> RecordDict:
    return with_arrays(content, {})


@hostile("no records", "records")
def no_records(content: RecordDict) -> RecordDict:
    return RecordDict()


@hostile("two array records", "records")
def two_array_records(content: RecordDict) -> RecordDict:
    return RecordDict({**content, "more": content["arrays"]})


@hostile("records of other names", "records")
def other_names(content: RecordDict) -> RecordDict:
    return RecordDict({"weights": content["arrays"], "numbers": content["metrics"]})


@hostile("oversized record", "size")
def oversized(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    size = 10 * sum(len(array.data) for array in arrays_of(content).values()) + 1_000_000
    return with_array(content, name, Array(str(weight.dtype), weight.shape, "numpy.ndarray", bytes(size)))


@hostile("declared is not encoded", "encoding")
def declared_is_not_encoded(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    encoded = Array(weight.reshape(-1)[:1]).data
    return with_array(content, name, Array(str(weight.dtype), weight.shape, "numpy.ndarray", encoded))


@hostile("forged header of 300 GiB", "encoding")
def forged_header(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    forged = header((300 * 2**30 // 4,)) + weight.tobytes()
    return with_array(content, name, Array(str(weight.dtype), weight.shape, "numpy.ndarray", forged))


@hostile("declared 300 GiB", "shape")
def declared_huge(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    shape = (300 * 2**30 // 4,)
    return with_array(content, name, Array("float32", shape, "numpy.ndarray", header(shape) + weight.tobytes()))


@hostile("truncated values", "encoding")
def truncated(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    data = Array(weight).data[:-4]
    return with_array(content, name, Array(str(weight.dtype), weight.shape, "numpy.ndarray", data))


@hostile("Fortran order", "encoding")
def fortran_order(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    data = header(weight.shape, fortran_order=True) + weight.tobytes()
    return with_array(content, name, Array(str(weight.dtype), weight.shape, "numpy.ndarray", data))


@hostile("pickled objects", "encoding")
def pickled(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    data = header(weight.shape, dtype="|O") + weight.tobytes()
    return with_array(content, name, Array(str(weight.dtype), weight.shape, "numpy.ndarray", data))


@hostile("another stype", "encoding")
def another_stype(content: RecordDict) -> RecordDict:
    name, weight = first(content)
    return with_array(content, name, Array("float32", weight.shape, "torch.pickle", Array(weight).data))


@hostile("negative variance", "buffers")
def negative_variance(content: RecordDict) -> RecordDict:
    name, variance = ending(content, "running_var")
    variance[0] = -0.5
    return with_array(content, name, Array(variance))


@hostile("negative counter", "buffers")
def negative_counter(content: RecordDict) -> RecordDict:
    name, counter = ending(content, "num_batches_tracked")
    return with_array(content, name, Array(np.full_like(counter, -1)))


@hostile("no num-examples", "num-examples")
def no_examples(content: RecordDict) -> RecordDict:
    return RecordDict({**content, "metrics": MetricRecord({"loss": 1.0})})


@hostile("no loss", "metrics")
def no_loss(content: RecordDict) -> RecordDict:
    """Flower's strategies raise when one reply's metrics differ from the others': so the guard must require them."""
    metrics = {name: value for name, value in content.metric_records["metrics"].items() if name != "loss"}
    return RecordDict({**content, "metrics": MetricRecord(metrics)})
