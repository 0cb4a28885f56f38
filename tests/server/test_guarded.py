"""`Guarded(strategy)` in Flower's own `start()`: real ClientApps, 64-bit node ids, every kind of bad reply."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import nn

import thistle
from tests.flower_app import accuracy, initial, make_app, plain, with_batch_norm
from tests.flower_grid import MemoryGrid, Tamper
from tests.hostile import HOSTILE, ending, first, with_array, with_metric
from thistle.experiments.errors import UserError
from thistle.server import Guarded

NODES = 10
BAD = 3
"""The partition of the node that misbehaves."""


def bad_app(train: Any = None, evaluate: Any = None, **more: Any) -> Any:
    """Apps by partition: one changes what it sends."""
    changed = {key: value for key, value in (("train_reply", train), ("evaluate_reply", evaluate)) if value}
    return lambda index: make_app(**more, **(changed if index == BAD else {}))


def start(strategy: Strategy, app: Any, make: Any = plain, rounds: int = 2, tamper: Tamper | None = None) -> Result:
    random.seed(0)  # Flower samples nodes with it, and sums in that order
    return strategy.start(MemoryGrid(app, NODES, tamper), initial(make), num_rounds=rounds)


def rejected(guarded: Guarded, phase: str = "train") -> dict[int, set[str]]:
    """Partition → the rules that it broke."""
    ids = MemoryGrid(make_app(), NODES).ids
    found: dict[int, set[str]] = {}
    for verdict in guarded.verdicts:
        if verdict.phase == phase and verdict.verdict != "accepted" and verdict.node is not None:
            found.setdefault(ids.index(verdict.node), set()).add(verdict.reason.partition(":")[0])
    return found


def same(one: ArrayRecord, other: ArrayRecord) -> bool:
    return all(one[name].data == other[name].data for name in other) and len(one) == len(other)


def test_it_can_be_imported_from_both_doors() -> None:
    assert thistle.Guarded is Guarded


def test_without_bad_replies_the_model_is_the_strategys_own() -> None:
    alone, guarded = start(FedAvg(), make_app()), start(Guarded(FedAvg()), make_app())
    assert same(guarded.arrays, alone.arrays)
    assert guarded.train_metrics_clientapp == alone.train_metrics_clientapp
    assert guarded.evaluate_metrics_clientapp == alone.evaluate_metrics_clientapp


def test_every_outcome_can_be_read() -> None:
    guarded = Guarded(FedAvg())
    start(guarded, bad_app(HOSTILE["NaN"][0]))
    train = [v for v in guarded.verdicts if v.phase == "train"]
    assert [v.round for v in train] == [1] * NODES + [2] * NODES
    assert {v.node for v in train} == set(MemoryGrid(make_app(), NODES).ids)
    assert [v.verdict for v in train].count("rejected") == 2
    assert rejected(guarded) == {BAD: {"not finite"}}


SKIPPED = {"loss 1e30", "loss -1", "loss NaN", "loss a list", "no loss", "records of other names", "declared 300 GiB"}
"""These are about a metric or a name that this app's replies do not have; the last does not fit Flower's messages."""


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in SKIPPED])
def test_a_hostile_reply_is_rejected_and_the_others_count(name: str) -> None:
    attack, _ = HOSTILE[name]
    guarded = Guarded(FedAvg())
    result = start(guarded, bad_app(attack, make=with_batch_norm), with_batch_norm, rounds=1)
    expected_to_fit = name in ("num-examples a float", "Fortran order")
    assert (BAD in rejected(guarded)) != expected_to_fit
    assert accuracy(result.arrays, with_batch_norm) > 0.4


@pytest.mark.parametrize("name", ["NaN", "wrong shape", "missing key", "no num-examples"])
def test_stock_fedavg_does_not_survive_what_the_guard_stops(name: str) -> None:
    """Otherwise the test above would prove nothing."""
    try:
        result = start(FedAvg(), bad_app(HOSTILE[name][0]), rounds=1)
    except Exception:
        return
    assert not accuracy(result.arrays) > 0.5


def _extra_metric(content: RecordDict) -> RecordDict:
    return with_metric(content, "mine", 1.0)


def _no_metric(content: RecordDict) -> RecordDict:
    return RecordDict({**content, "metrics": MetricRecord({"num-examples": 120})})


def test_metrics_that_others_do_not_have_are_dropped_and_missing_ones_rejected() -> None:
    with pytest.raises(Exception, match="MetricRecords must have the same keys"):
        start(FedAvg(), bad_app(_extra_metric))
    more, fewer = Guarded(FedAvg()), Guarded(FedAvg())
    result = start(more, bad_app(_extra_metric))
    assert rejected(more) == {} and set(result.train_metrics_clientapp[1]) == {"train_loss"}
    start(fewer, bad_app(_no_metric))
    assert rejected(fewer) == {BAD: {"metrics"}}


def test_lists_of_another_length_are_rejected() -> None:
    def app(index: int) -> ClientApp:
        values = [1.0, 2.0] if index == BAD else [1.0, 2.0, 3.0]
        return make_app(train_reply=lambda content: with_metric(content, "curve", values))  # type: ignore[arg-type]

    guarded = Guarded(FedAvg())
    result = start(guarded, app)
    assert rejected(guarded) == {BAD: {"metrics"}}
    assert result.train_metrics_clientapp[1]["curve"] == pytest.approx([1.0, 2.0, 3.0])


def test_a_reply_with_more_records_than_the_others_changes_nothing_for_them() -> None:
    guarded = Guarded(FedAvg())
    start(guarded, bad_app(lambda content: RecordDict({**content, "notes": ConfigRecord({"a": 1})})))
    assert rejected(guarded) == {}
    guarded = Guarded(FedAvg())
    start(guarded, bad_app(lambda content: RecordDict({**content, "more": content["arrays"]})))
    assert rejected(guarded) == {BAD: {"records"}}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_evaluation_replies_are_rejected(value: float) -> None:
    guarded = Guarded(FedAvg())
    result = start(guarded, bad_app(evaluate=lambda content: with_metric(content, "eval_acc", value)))
    assert rejected(guarded) == {} and rejected(guarded, "evaluate") == {BAD: {"metrics"}}
    assert 0.5 < result.evaluate_metrics_clientapp[2]["eval_acc"] <= 1  # type: ignore[operator]


def test_evaluation_may_be_off() -> None:
    guarded = Guarded(FedAvg(fraction_evaluate=0.0))
    result = start(guarded, bad_app(HOSTILE["NaN"][0]))
    assert {v.phase for v in guarded.verdicts} == {"train"}
    assert result.evaluate_metrics_clientapp == {} and accuracy(result.arrays) > 0.5


def test_the_servers_own_evaluation_and_config_go_on_working() -> None:
    seen: list[object] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": accuracy(arrays)})

    grid = MemoryGrid(make_app(), NODES)
    result = Guarded(FedAvg()).start(
        grid, initial(), num_rounds=2, train_config=ConfigRecord({"lr": 0.1}), evaluate_fn=evaluate
    )
    seen = [message.content["config"] for message in grid.requests if message.metadata.message_type == "train"]
    assert all(config["lr"] == 0.1 and "server-round" in config for config in seen)  # type: ignore[index, operator]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]


def test_other_record_keys_are_the_strategys() -> None:
    strategy = FedAvg(arrayrecord_key="weights", weighted_by_key="samples")
    guarded = Guarded(strategy)
    result = start(guarded, bad_app(lambda c: with_metric(c, "samples", 0), arrays="weights", weight="samples"))
    assert rejected(guarded) == {BAD: {"samples"}} and accuracy(result.arrays) > 0.5


class Custom(Strategy):
    """A strategy without Flower's attributes: the first reply's model, under names of its own."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        content = RecordDict({"weights": arrays, "config": config})
        return [Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        mean = [np.mean([r.content["weights"][k].numpy() for r in list(replies)], 0) for k in ("weight", "bias")]  # type: ignore[index]
        return ArrayRecord(mean), None

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        return None

    def summary(self) -> None: ...


def test_a_strategy_of_the_users_own_keeps_its_names() -> None:
    guarded = Guarded(Custom(), arrayrecord_key="weights")
    result = start(guarded, bad_app(HOSTILE_WEIGHTS, arrays="weights"))
    assert rejected(guarded) == {BAD: {"not finite"}}
    assert list(result.arrays) == ["weight", "bias"] and accuracy(result.arrays) > 0.5


def HOSTILE_WEIGHTS(content: RecordDict) -> RecordDict:
    nan = {name: Array(np.full(array.shape, np.nan, np.float32)) for name, array in content["weights"].items()}
    return RecordDict({**content, "weights": ArrayRecord(nan)})  # type: ignore[arg-type]


class Saving(FedAvg):
    """With a `start` of its own, as Flower's guide shows it."""

    def start(self, *args: Any, **more: Any) -> Result:
        self.started = True
        return super().start(*args, **more)


def test_a_start_of_the_strategys_own_runs_under_guard() -> None:
    guarded = Guarded(Saving())
    result = start(guarded, bad_app(HOSTILE["NaN"][0]))
    assert guarded.started and guarded.inner.started  # type: ignore[attr-defined]
    assert rejected(guarded) == {BAD: {"not finite"}} and accuracy(result.arrays) > 0.5


@pytest.mark.parametrize(
    "strategy",
    [
        flower.FedAvg(),
        flower.FedProx(),
        flower.FedAvgM(server_momentum=0.5),
        flower.FedAdam(eta=0.01),
        flower.FedAdagrad(eta=0.05),
        flower.FedYogi(eta=0.01),
        flower.FedMedian(),
        flower.FedTrimmedAvg(),
        flower.Krum(num_malicious_nodes=1),
        flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=5),
        flower.Bulyan(num_malicious_nodes=1),
        flower.QFedAvg(client_learning_rate=0.5, q=0.0),
        flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1e-9, 100.0, NODES),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_flowers_strategies_with_buffers_and_a_hostile_node(strategy: Strategy) -> None:
    guarded = Guarded(strategy)
    result = start(guarded, bad_app(HOSTILE["NaN"][0], make=with_batch_norm), with_batch_norm, rounds=8)
    assert rejected(guarded) == {BAD: {"not finite"}}
    assert not [v for v in guarded.verdicts if v.node is None]
    kept = {name: (array.dtype, array.shape) for name, array in result.arrays.items()}
    assert kept == {name: (array.dtype, array.shape) for name, array in initial(with_batch_norm).items()}
    assert (result.arrays["1.running_var"].numpy() >= 0).all()
    assert accuracy(result.arrays, with_batch_norm) > 0.5


def _lying_buffers(content: RecordDict) -> RecordDict:
    """Honest weights, and statistics that nobody else saw: below every bound of the guard's."""
    name, means = ending(content, "running_mean")
    return with_array(content, name, Array(np.full_like(means, 1e5)))


def test_lying_buffers_ruin_stock_fedavg_and_not_a_guarded_one() -> None:
    app = bad_app(_lying_buffers, make=with_batch_norm)
    assert accuracy(start(FedAvg(), app, with_batch_norm, rounds=8).arrays, with_batch_norm) < 0.3
    assert accuracy(start(Guarded(FedAvg()), app, with_batch_norm, rounds=8).arrays, with_batch_norm) > 0.5


def test_a_model_says_which_arrays_are_trained() -> None:
    """A float buffer with an unusual name: known only from the model."""

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, 10)
            self.register_buffer("mask", torch.tensor([float("-inf")]))

    guarded = Guarded(FedAvg(), model=Scaled())
    result = guarded.start(MemoryGrid(make_app(Scaled), NODES), ArrayRecord(Scaled().state_dict()), num_rounds=2)
    assert rejected(guarded) == {} and np.isneginf(result.arrays["mask"].numpy()).all()
    with pytest.raises(ValueError, match="do not match the 3 that are sent"):
        Guarded(FedAvg(), model=nn.Linear(3, 3)).start(
            MemoryGrid(make_app(Scaled), NODES), ArrayRecord(Scaled().state_dict()), num_rounds=1
        )


def test_transposed_weights_fit() -> None:
    def transposed(content: RecordDict) -> RecordDict:
        name, weight = first(content)
        return with_array(content, name, Array(np.asfortranarray(weight)))

    alone, guarded = start(FedAvg(), make_app()), Guarded(FedAvg())
    result = start(guarded, make_app(train_reply=transposed))
    assert rejected(guarded) == {}
    torch.testing.assert_close(result.arrays.to_torch_state_dict(), alone.arrays.to_torch_state_dict())


def test_other_types_of_numbers_fit() -> None:
    def double(content: RecordDict) -> RecordDict:
        return RecordDict({**content, "arrays": ArrayRecord({k: Array(a.numpy() * 1.0) for k, a in wide(content)})})

    def wide(content: RecordDict) -> Any:
        return [(k, Array(a.numpy().astype(np.float64))) for k, a in content["arrays"].items()]  # type: ignore[union-attr]

    guarded = Guarded(FedAvg())
    arrays = ArrayRecord(plain().double().state_dict())
    result = guarded.start(MemoryGrid(make_app(train_reply=double), NODES), arrays, num_rounds=2)
    assert rejected(guarded) == {} and result.arrays["weight"].dtype == "float64"
    assert accuracy(result.arrays) > 0.5


def test_failed_nodes_are_told_apart_from_silent_ones() -> None:
    def app(index: int) -> ClientApp:
        return ClientApp() if index == BAD else make_app()  # has no train function: Flower replies with an error

    guarded = Guarded(FedAvg())
    result = start(guarded, app, tamper=lambda replies: replies[1:])
    assert {v.verdict for v in guarded.verdicts if v.reason} == {"failed"}
    assert rejected(guarded)[BAD] == {"failed"} and any(
        reasons == {"timeout"} for reasons in rejected(guarded).values()
    )
    assert accuracy(result.arrays) > 0.5


def test_what_the_superlink_says_of_a_lost_node_is_that_nodes_outcome() -> None:
    grid = MemoryGrid(make_app(), NODES)

    def lose(replies: list[Message]) -> list[Message]:
        asked = {message.metadata.message_id: message.metadata for message in grid.requests}
        lost = asked[replies[0].metadata.reply_to_message_id]
        return [create_message_error_unavailable_res_message(lost, "node_unavail"), *replies[1:]]

    grid.tamper = lose
    guarded = Guarded(FedAvg())
    guarded.start(grid, initial(), num_rounds=1)
    reasons = [v.reason for v in guarded.verdicts if v.verdict == "failed"]
    assert len(reasons) == 2 and all("navailable" in reason for reason in reasons)


def test_duplicates_and_replies_of_other_rounds() -> None:
    kept: list[Message] = []

    def tamper(replies: list[Message]) -> list[Message]:
        if replies[0].metadata.message_type != "train":
            return replies
        first, second, *others = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        kept.append(second)
        late = [kept[0]] if len(kept) > 1 else [second]
        return [first, first, *late, *others]

    guarded = Guarded(FedAvg())
    result = start(guarded, make_app(), tamper=tamper)
    ordered = sorted(MemoryGrid(make_app(), NODES).ids)
    reasons = [(v.round, ordered.index(v.node), v.reason) for v in guarded.verdicts if v.reason and v.node is not None]
    assert (1, 0, "duplicate: 2 replies") in reasons and (2, 0, "duplicate: 2 replies") in reasons
    assert (2, 1, "not asked: a reply of another round") in reasons and len(reasons) == 3
    assert accuracy(result.arrays) > 0.5


def test_a_stranger_is_not_heard() -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        replies[0].metadata.__dict__["_src_node_id"] = 5
        return replies

    guarded = Guarded(FedAvg())
    start(guarded, make_app(), rounds=1, tamper=tamper)
    assert ("train", 5, "rejected") in [(v.phase, v.node, v.verdict) for v in guarded.verdicts]


@pytest.mark.parametrize("tamper", [lambda replies: [], None])
def test_where_nothing_is_left_the_model_stays(tamper: Tamper | None) -> None:
    guarded = Guarded(FedAvg())
    result = start(guarded, make_app(train_reply=HOSTILE["NaN"][0]), tamper=tamper)
    assert same(result.arrays, initial())
    assert "no reply was accepted: the model stays" in {v.reason for v in guarded.verdicts}


class Raising(FedAvg):
    """Raises in these rounds."""

    def __init__(self, *rounds: int) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.rounds = rounds

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round in self.rounds:
            raise RuntimeError("no\nwith me")
        return super().aggregate_train(server_round, replies)


def test_a_strategy_that_raises_now_and_then_costs_its_rounds_only() -> None:
    guarded = Guarded(Raising(1, 2, 4, 5))
    result = start(guarded, make_app(), rounds=6)
    failures = [(v.round, v.reason) for v in guarded.verdicts if v.node is None]
    assert [number for number, _ in failures] == [1, 2, 4, 5]
    assert failures[0][1] == "aggregate_train raised RuntimeError: no with me, the model stays"
    twice = start(FedAvg(fraction_evaluate=0.0), make_app(), rounds=2)
    torch.testing.assert_close(result.arrays.to_torch_state_dict(), twice.arrays.to_torch_state_dict())


def test_a_strategy_that_raises_three_times_in_a_row_ends_the_run() -> None:
    guarded = Guarded(Raising(2, 3, 4))
    with pytest.raises(RuntimeError, match="with me"):
        start(guarded, make_app(), rounds=6)
    assert [v.round for v in guarded.verdicts if v.node is None] == [2, 3, 4]


class Broken(FedAvg):
    """Returns a model that is none."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        values = {name: Array(array.numpy() * np.nan) for name, array in arrays.items()}
        return ArrayRecord(values), metrics


def test_the_aggregate_is_checked_too() -> None:
    guarded = Guarded(Broken())
    result = start(guarded, make_app())
    assert same(result.arrays, initial())
    assert {v.reason for v in guarded.verdicts if v.node is None} == {"aggregate.not-finite: the model stays"}


def test_a_weight_counts_no_more_than_the_most() -> None:
    boast = bad_app(lambda content: with_metric(content, "num-examples", 10**8))
    capped = start(Guarded(FedAvg(), max_examples=120), boast)
    assert same(capped.arrays, start(FedAvg(), make_app()).arrays)


def test_warnings_are_one_line_each_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(train_reply=HOSTILE["NaN"][0])
    with caplog.at_level(logging.WARNING, "flwr"):
        Guarded(FedAvg()).start(MemoryGrid(app, 30), initial(), num_rounds=1)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([line for line in lines if "rejected: not finite: weight" in line]) == 20
    assert "… and 11 more: see Guarded.verdicts" in lines and not any("\n" in line for line in lines)


def test_what_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(UserError, match="wraps a Flower Strategy"):
        Guarded(FedAvg)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="trees"):
        Guarded(flower.FedXgbBagging())
    with pytest.raises(UserError, match="max_examples = 0"):
        Guarded(FedAvg(), max_examples=0)
