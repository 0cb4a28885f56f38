"""Whatever a strategy returns, the next model has the task's names, shapes and types, or stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from torch import nn

from tests.messages import reply
from thistle.protocol.layout import Layout, load_record, to_record
from thistle.server.guard.casting import cast_aggregate

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
LAYOUT = Layout.of(MODEL)
SENT = to_record(MODEL.state_dict())
COUNTER = "1.num_batches_tracked"


def values(record: ArrayRecord = SENT, dtype: str | None = None) -> dict[str, np.ndarray]:
    return {name: array.numpy().astype(dtype or array.dtype) for name, array in record.items()}


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def is_the_models(cast: ArrayRecord) -> bool:
    return [(name, array.dtype, array.shape) for name, array in cast.items()] == [
        (name, array.dtype, array.shape) for name, array in SENT.items()
    ]


def test_no_aggregate_keeps_the_model() -> None:
    assert cast_aggregate(None, SENT, LAYOUT) == (SENT, "none")


def test_float64_and_fractional_counters_are_cast_back() -> None:
    aggregate = values(dtype="float64")
    aggregate[COUNTER] = np.asarray(3.67)
    cast, problem = cast_aggregate(record(aggregate), SENT, LAYOUT)
    assert (problem, is_the_models(cast), int(cast[COUNTER].numpy())) == ("", True, 4)
    assert all(cast[name].data == SENT[name].data for name in SENT if name != COUNTER)
    load_record(MODEL, cast)


def test_another_order_of_names_is_put_right() -> None:
    cast, problem = cast_aggregate(record(dict(reversed(values().items()))), SENT, LAYOUT)
    assert (cast, problem) == (SENT, "")
    assert list(cast) == list(SENT)


def test_a_strategy_that_lost_the_names_is_read_by_order() -> None:
    cast, problem = cast_aggregate(ArrayRecord(list(values(dtype="float64").values())), SENT, LAYOUT)
    assert (cast, problem) == (SENT, "")


def test_large_counters_keep_every_digit() -> None:
    cast, problem = cast_aggregate(record({**values(), COUNTER: np.asarray(2**62 + 1)}), SENT, LAYOUT)
    assert (problem, int(cast[COUNTER].numpy())) == ("", 2**62 + 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("name", ["0.weight", "1.running_var", COUNTER])
def test_not_finite_keeps_the_model(name: str, value: float) -> None:
    aggregate = values(dtype="float64")
    aggregate[name] = np.full(aggregate[name].shape, value)
    assert cast_aggregate(record(aggregate), SENT, LAYOUT) == (SENT, "aggregate.not-finite")


MALFORMED: dict[str, Any] = {
    "empty": ArrayRecord(),
    "a dict of arrays": values(),
    "a number": 3,
    "missing": record({name: array for name, array in values().items() if name != COUNTER}),
    "extra": record({**values(), "more": np.zeros(1)}),
    "shape": record({**values(), "0.bias": np.zeros(1, np.float32)}),
    "no names, another count": ArrayRecord(list(values().values())[1:]),
    "no names, another order": ArrayRecord(list(values().values())[::-1]),
    "text": record({**values(), "0.bias": np.array(["a", "b", "c", "d"])}),
    "bytes": ArrayRecord({**SENT, "0.bias": Array("float32", (4,), "numpy.ndarray", b"")}),
    "stype": ArrayRecord({**SENT, "0.bias": Array("float32", (4,), "other", b"")}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_keeps_the_model(name: str) -> None:
    assert cast_aggregate(MALFORMED[name], SENT, LAYOUT) == (SENT, "aggregate.malformed")


class OneGrid:
    """Just enough of a grid for configure_train."""

    def get_node_ids(self) -> list[int]:
        return list(range(8))


FLOWER = {
    "FedAvg": flower.FedAvg(),
    "FedProx": flower.FedProx(),
    "FedAvgM": flower.FedAvgM(server_momentum=0.9),
    "FedAdam": flower.FedAdam(),
    "FedAdagrad": flower.FedAdagrad(),
    "FedYogi": flower.FedYogi(),
    "FedMedian": flower.FedMedian(),
    "FedTrimmedAvg": flower.FedTrimmedAvg(),
    "Krum": flower.Krum(num_malicious_nodes=1),
    "MultiKrum": flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": flower.Bulyan(num_malicious_nodes=1),
}


def answer(client: int) -> RecordDict:
    shifted = {name: np.asarray(array + (client + 1) * 0.5).astype(array.dtype) for name, array in values().items()}
    return RecordDict({"arrays": record(shifted), "metrics": MetricRecord({"num-examples": 5 + client, "loss": 1.0})})


@pytest.mark.parametrize("name", FLOWER)
def test_flowers_strategies_give_a_model_back(name: str) -> None:
    strategy = FLOWER[name]
    strategy.configure_train(1, SENT, ConfigRecord(), OneGrid())  # type: ignore[arg-type]
    aggregate, _ = strategy.aggregate_train(1, [reply(client, answer(client)) for client in range(8)])
    cast, problem = cast_aggregate(aggregate, SENT, LAYOUT)
    assert (problem, is_the_models(cast)) == ("", True)
    assert cast != SENT


def test_qfedavg_gives_a_model_without_counters_back() -> None:
    model = nn.Linear(3, 2)
    layout, sent = Layout.of(model), to_record(model.state_dict())
    strategy = flower.QFedAvg(client_learning_rate=0.1, train_loss_key="loss")
    strategy.configure_train(1, sent, ConfigRecord(), OneGrid())  # type: ignore[arg-type]
    moved = record({name: array + np.float32(0.5) for name, array in values(sent).items()})
    metrics = MetricRecord({"num-examples": 5, "loss": 1.0})
    replies = [reply(client, RecordDict({"arrays": moved.copy(), "metrics": metrics})) for client in range(3)]
    aggregate, _ = strategy.aggregate_train(1, replies)
    cast, problem = cast_aggregate(aggregate, sent, layout)
    assert (problem, list(cast)) == ("", ["weight", "bias"])
    assert all(array.dtype == "float32" for array in cast.values())
