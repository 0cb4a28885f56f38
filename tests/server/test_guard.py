"""Whatever a reply holds: it never raises, it gets a reason, and the others are not touched by it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.hostile import HOSTILE, arrays_of, header, with_array, with_metric
from tests.messages import error_reply, reply, unchecked
from thistle.protocol.layout import Layout, record_bytes, to_record, to_state
from thistle.protocol.verdict import Verdict
from thistle.server.guard.inspection import Expected, Guard, Inspection
from thistle.server.transport.reply import Reply
from thistle.strategies.flower import as_messages

CLIENTS = range(10)
VILLAIN = 4
CLASSES = 3
CAP = 500
KNOWN = frozenset({"num-examples", "loss", "seconds"})
EXPECTED = Expected(KNOWN, required=KNOWN)
FUZZ = settings(max_examples=200, deadline=None, database=None)
COUNTED = Expected(frozenset({"num-examples"}), frozenset({"num-examples"}), class_counts=True)

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, CLASSES))
LAYOUT = Layout.of(MODEL)
SENT = to_record(MODEL.state_dict())


def honest(client: int) -> RecordDict:
    noise = np.random.default_rng(client)
    arrays = {}
    for name, array in SENT.items():
        value = array.numpy()
        step = 1 if value.dtype.kind == "i" else 0.01 * np.abs(noise.standard_normal(value.shape))
        arrays[name] = Array(np.asarray(value + step, dtype=value.dtype))
    metrics = MetricRecord({"num-examples": 50 + client, "loss": 1.5, "seconds": 0.1})
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})


def inspect(replies: list[Message], expected: Expected = EXPECTED) -> Inspection:
    return Guard(LAYOUT, CLASSES, lambda client: CAP).inspect(SENT, CLIENTS, map(unchecked, replies), expected, "1")


def bits(message: Message) -> object:
    arrays = [(name, array.dtype, array.shape, array.data) for name, array in arrays_of(message.content).items()]
    return message.metadata.src_node_id, arrays, dict(message.content["metrics"])


def accepted(inspection: Inspection) -> list[Message]:
    """The answers as messages, after making sure that each row of the block is its answer's update."""
    before = LAYOUT.vector(to_state(SENT))
    for row, answer in zip(inspection.updates, inspection.answers, strict=True):
        after = {name: torch.from_numpy(np.array(values)) for name, values in answer.arrays.items()}
        assert torch.equal(torch.from_numpy(row), LAYOUT.vector(after) - before)
    return as_messages(inspection.answers, 1)


OTHERS = [reply(client, honest(client)) for client in CLIENTS if client != VILLAIN]
ALONE = [bits(message) for message in accepted(inspect(OTHERS))]


def judge(*replies: Message) -> Verdict:
    """The villain's verdict, after making sure that the other nine are bit-identical to a run without it."""
    inspection = inspect([*OTHERS[5:], *replies, *OTHERS[:5]])
    assert [bits(message) for message in accepted(inspection) if message.metadata.src_node_id != VILLAIN] == ALONE
    assert [verdict.client for verdict in inspection.verdicts] == list(CLIENTS)
    assert all(verdict.verdict == "accepted" for verdict in inspection.verdicts if verdict.client != VILLAIN)
    return inspection.verdicts[VILLAIN]


def test_bytes_of_rejected_replies_are_counted() -> None:
    replies = [reply(client, honest(client)) for client in CLIENTS]
    size = inspect(replies).num_bytes
    assert size == len(replies) * record_bytes([SENT])
    broken = honest(VILLAIN)
    broken["metrics"]["loss"] = float("nan")
    replies[VILLAIN] = reply(VILLAIN, broken)
    found = inspect(replies)
    assert [v.client for v in found.verdicts if v.verdict == "rejected"] == [VILLAIN] and found.num_bytes == size


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_is_rejected_with_its_reason(name: str) -> None:
    attack, reason = HOSTILE[name]
    verdict = judge(reply(VILLAIN, attack(honest(VILLAIN))))
    assert (verdict.verdict, verdict.step, verdict.reason.split(":")[0]) == ("rejected", "guard", reason)
    assert verdict.reason.isprintable()
    assert len(verdict.reason) <= 200


def test_the_honest_reply_is_accepted_as_it_is() -> None:
    verdict = judge(reply(VILLAIN, honest(VILLAIN)))
    assert verdict == Verdict(VILLAIN, "accepted")
    taken = accepted(inspect([reply(VILLAIN, honest(VILLAIN))]))[0]
    assert bits(taken) == bits(reply(VILLAIN, honest(VILLAIN)))
    assert (taken.metadata.src_node_id, taken.metadata.group_id) == (VILLAIN, "1")


def test_answers_are_the_same_where_updates_are_not_kept() -> None:
    guard = Guard(LAYOUT, CLASSES, lambda client: CAP, keeps_updates=False)
    inspection = guard.inspect(SENT, CLIENTS, map(unchecked, OTHERS), EXPECTED, "1")
    assert len(inspection.updates) == 1
    assert [bits(message) for message in as_messages(inspection.answers, 1)] == ALONE


def test_where_only_updates_are_kept_no_reply_is_there_when_the_next_comes() -> None:
    model, count = nn.Sequential(nn.Linear(500, 500), nn.BatchNorm1d(500)), 20
    layout, sent = Layout.of(model), to_record(model.state_dict())
    guard = Guard(layout, CLASSES, lambda client: CAP, keeps_models=False)
    metrics = MetricRecord({"num-examples": 50, "loss": 1.5, "seconds": 0.1})

    def coming() -> Iterator[Reply]:
        for client in range(count):
            yield Reply(client, "1", RecordDict({"arrays": to_record(model.state_dict()), "metrics": metrics}))

    tracemalloc.start()
    try:
        inspection = guard.inspect(sent, range(count), coming(), EXPECTED, "1")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(inspection.updates) == count
    assert all(list(answer.arrays) == [entry.name for entry in layout.buffers] for answer in inspection.answers)
    assert most < (count + 6) * layout.num_bytes


def test_messages_hold_the_very_bytes_that_came() -> None:
    content = honest(VILLAIN)
    taken = accepted(inspect([reply(VILLAIN, content)]))[0]
    assert all(array.data is arrays_of(content)[name].data for name, array in arrays_of(taken.content).items())


def test_nobody_answers() -> None:
    inspection = inspect([])
    assert inspection.updates.shape == (0, LAYOUT.size) and not inspection.answers


def test_a_reply_is_rebuilt_in_the_models_order() -> None:
    content = honest(VILLAIN)
    backwards = RecordDict({**content, "arrays": ArrayRecord(dict(reversed(arrays_of(content).items())))})
    assert list(backwards["arrays"]) != list(SENT)
    taken = accepted(inspect([reply(VILLAIN, backwards)]))[0]
    assert list(taken.content["arrays"]) == list(SENT)


def test_a_header_that_is_only_padded_differently_is_read() -> None:
    """Another numpy may pad otherwise: the header is parsed, and the values are found behind it."""
    content = honest(VILLAIN)
    weight = arrays_of(content)["0.weight"]
    text = repr({"descr": "<f4", "fortran_order": False, "shape": weight.shape}).encode() + b"\n"
    padded = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + weight.numpy().tobytes()
    other = with_array(content, "0.weight", Array(weight.dtype, weight.shape, weight.stype, padded))
    taken = accepted(inspect([reply(VILLAIN, other)]))[0]
    assert np.array_equal(arrays_of(taken.content)["0.weight"].numpy(), weight.numpy())


def test_num_examples_is_capped_and_unknown_metrics_are_dropped() -> None:
    content = with_metric(with_metric(honest(VILLAIN), "num-examples", 10**9), "bonus", 3)
    taken = accepted(inspect([reply(VILLAIN, content)]))[0]
    assert dict(taken.content["metrics"]) == {"num-examples": CAP, "loss": 1.5, "seconds": 0.1}
    assert dict(content["metrics"])["num-examples"] == 10**9


def test_a_metric_that_is_not_required_may_be_missing() -> None:
    attack, _ = HOSTILE["no loss"]
    lenient = Expected(KNOWN, required=frozenset({"num-examples"}))
    taken = accepted(inspect([reply(VILLAIN, attack(honest(VILLAIN)))], lenient))[0]
    assert dict(taken.content["metrics"]) == {"num-examples": 50 + VILLAIN, "seconds": 0.1}


@pytest.mark.parametrize("value", [100.5, 10**12, 1e30, float("inf"), float("nan")])
def test_a_loss_that_is_only_logged_keeps_nobody_out(value: float) -> None:
    """Once a model is ruined, honest clients report such losses, and liars report 1.0."""
    content = with_metric(honest(VILLAIN), "loss", value)
    logged = Expected(KNOWN, required=KNOWN, logged=frozenset({"loss"}))
    taken = accepted(inspect([reply(VILLAIN, content)], logged))[0]
    assert dict(taken.content["metrics"]) == {"num-examples": 50 + VILLAIN, "loss": 100.0, "seconds": 0.1}
    assert inspect([reply(VILLAIN, content)]).verdicts[VILLAIN].verdict == "rejected"


@pytest.mark.parametrize("value", [-1.0, float("-inf"), [1.0, 2.0]])
def test_a_logged_loss_must_still_be_one(value: float | list[float]) -> None:
    logged = Expected(KNOWN, required=KNOWN, logged=frozenset({"loss"}))
    found = inspect([reply(VILLAIN, with_metric(honest(VILLAIN), "loss", value))], logged)
    assert found.verdicts[VILLAIN].reason.startswith("metrics: loss")


def test_the_detail_says_what_would_be_right() -> None:
    attack, _ = HOSTILE["broadcast shape"]
    assert judge(reply(VILLAIN, attack(honest(VILLAIN)))).reason == "shape: 0.weight is (1,) instead of (4, 1, 3, 3)"


@pytest.mark.parametrize(
    "counts", [[54, 0], [54, 1, -1], [50, 3, 2], [54, 0, 0, 0], [10**15, 0, 0], [53.0, 1.0, 0.0], 54, None]
)
def test_wrong_class_counts(counts: list[int] | int | None) -> None:
    content = honest(VILLAIN) if counts is None else with_metric(honest(VILLAIN), "class-counts", counts)
    verdict = inspect([reply(VILLAIN, content)], COUNTED).verdicts[VILLAIN]
    assert verdict.reason.startswith("class-counts")


def test_class_counts_shrink_with_num_examples() -> None:
    counts = [9 * 10**8, 10**8, 0]
    content = with_metric(with_metric(honest(VILLAIN), "num-examples", 10**9), "class-counts", counts)
    taken = accepted(inspect([reply(VILLAIN, content)], COUNTED))[0]
    assert dict(taken.content["metrics"]) == {"num-examples": CAP, "class-counts": [450, 50, 0]}


def test_a_client_that_replies_twice_is_rejected() -> None:
    twice = [reply(VILLAIN, honest(VILLAIN)), reply(VILLAIN, honest(VILLAIN))]
    assert judge(*twice).reason == "duplicate: 2 replies"


def test_a_reply_of_another_round() -> None:
    verdict = judge(reply(VILLAIN, honest(VILLAIN), group_id="0"))
    assert (verdict.verdict, verdict.reason.split(":")[0]) == ("rejected", "not asked")


def test_a_late_reply_does_not_spoil_the_one_of_this_round() -> None:
    assert judge(reply(VILLAIN, honest(0), group_id="0"), reply(VILLAIN, honest(VILLAIN))).verdict == "accepted"


def test_a_client_that_was_not_asked_is_a_stray() -> None:
    inspection = inspect([*OTHERS, reply(77, honest(VILLAIN))])
    assert [bits(message) for message in accepted(inspection)] == ALONE
    assert inspection.strays == ["not asked: client 77"]
    assert [verdict.client for verdict in inspection.verdicts] == list(CLIENTS)


def test_a_missing_reply_is_a_timeout() -> None:
    assert judge() == Verdict(VILLAIN, "failed", reason="timeout")


def test_an_error_of_ten_megabytes_of_markup() -> None:
    text = "Traceback\n" + "<script>alert(1)</script>\x1b[31m\x07\u202e" * 350_000
    started = time.perf_counter()
    verdict = judge(error_reply(VILLAIN, text))
    assert time.perf_counter() - started < 1
    assert verdict.verdict == "failed"
    assert verdict.reason.startswith("failed: ")
    assert verdict.reason.isprintable()
    assert len(verdict.reason) <= 200


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Traceback …\nValueError: no data\n", "failed: ValueError: no data"),
        ("busy", "busy"),
        (None, "failed: no reason given"),
    ],
)
def test_errors_say_their_last_line(text: str | None, reason: str) -> None:
    assert judge(error_reply(VILLAIN, text)) == Verdict(VILLAIN, "failed", reason=reason)


def test_an_array_in_disguise_is_not_trusted() -> None:
    class Disguised(Array):
        def numpy(self) -> np.ndarray:
            raise AssertionError("must not be called")

    content = honest(VILLAIN)
    disguised = Disguised("float32", (CLASSES,), "numpy.ndarray", bytes(12))
    content.array_records["arrays"]["3.bias"] = disguised
    assert judge(reply(VILLAIN, content)).reason == "encoding: 3.bias is not an array of bytes"


def test_an_unexpected_exception_is_that_replys_alone() -> None:
    content = honest(VILLAIN)
    content.array_records["arrays"]["3.bias"].shape = None  # type: ignore[assignment]
    assert judge(reply(VILLAIN, content)).reason.startswith("records: TypeError")


def damaged(values: dict[str, float]) -> ArrayRecord:
    """A model some of whose arrays are full of one value."""
    full = {name: Array(np.full_like(SENT[name].numpy(), value)) for name, value in values.items()}
    return ArrayRecord({name: full.get(name, array) for name, array in SENT.items()})


DAMAGE = [{"1.running_mean": 5e6, "1.running_var": 1.8e10}, {"1.num_batches_tracked": 2**53}, {"3.bias": 3e6}]


@pytest.mark.parametrize("damage", DAMAGE)
def test_honest_replies_to_a_damaged_model_are_accepted(damage: dict[str, float]) -> None:
    """They are as large as what was sent, through no fault of the client's."""
    sent = damaged(damage)
    arrays = {
        name: Array(np.asarray(array.numpy() + (1 if array.dtype == "int64" else 0.1), dtype=array.dtype))
        for name, array in sent.items()
    }
    content = RecordDict({**honest(VILLAIN), "arrays": ArrayRecord(arrays)})
    guard = Guard(LAYOUT, CLASSES, lambda client: CAP)
    verdicts = guard.inspect(sent, [VILLAIN], [unchecked(reply(VILLAIN, content))], EXPECTED, "1").verdicts
    assert [verdict.verdict for verdict in verdicts] == ["accepted"], verdicts


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("1.running_mean", 2.1e6, "magnitude"),
        ("1.running_var", 1e30, "magnitude"),
        ("1.num_batches_tracked", 2**31 + 2, "buffers"),
    ],
)
def test_a_client_that_makes_buffers_absurd_is_rejected(name: str, value: float, reason: str) -> None:
    array = arrays_of(honest(VILLAIN))[name].numpy()
    verdict = judge(reply(VILLAIN, with_array(honest(VILLAIN), name, Array(np.full_like(array, value)))))
    assert verdict.reason.startswith(f"{reason}: {name}")


names = st.sampled_from(["arrays", "metrics"]) | st.text(max_size=5)
numbers = st.integers(-(2**63), 2**63) | st.floats()
metric_records = st.builds(
    MetricRecord,
    st.dictionaries(
        st.sampled_from(["num-examples", "loss", "seconds", "class-counts"]) | st.text(max_size=3),
        numbers | st.lists(st.integers(), max_size=4),
        max_size=5,
    ),
)
config_records = st.builds(ConfigRecord, st.dictionaries(st.text(max_size=3), st.text() | st.booleans(), max_size=3))
arrays = st.builds(
    Array,
    st.sampled_from(["float32", "float64", "object", "?"]) | st.text(max_size=4),
    st.lists(st.integers(-2, 2**40), max_size=4).map(tuple),
    st.sampled_from(["numpy.ndarray", "numpy.ndarray", ""]),
    st.binary(max_size=300),
)
array_records = st.builds(
    ArrayRecord, st.dictionaries(st.sampled_from(list(SENT)) | st.text(max_size=4), arrays, max_size=8)
)
contents = st.builds(RecordDict, st.dictionaries(names, array_records | metric_records | config_records, max_size=3))


def check_harmless(content: RecordDict) -> None:
    """No exception, not even one that the guard would catch, and the neighbours are untouched."""
    inspection = inspect([OTHERS[0], reply(VILLAIN, content), OTHERS[1]])
    assert [bits(message) for message in accepted(inspection) if message.metadata.src_node_id != VILLAIN] == ALONE[:2]
    reason = inspection.verdicts[VILLAIN].reason
    assert not (reason.startswith("records: ") and "Error: " in reason)


@FUZZ
@given(contents)
def test_random_records_never_raise(content: RecordDict) -> None:
    check_harmless(content)


@FUZZ
@given(st.sampled_from(list(SENT)), st.binary(max_size=200), st.booleans())
def test_random_bytes_never_raise(name: str, data: bytes, after_magic: bool) -> None:
    array = SENT[name]
    forged = header((1,))[:10] + data if after_magic else data
    check_harmless(with_array(honest(VILLAIN), name, Array(array.dtype, array.shape, array.stype, forged)))


@FUZZ
@given(st.sampled_from(list(SENT)), st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_never_raises(name: str, position: int, value: int) -> None:
    array = arrays_of(honest(VILLAIN))[name]
    data = bytearray(array.data)
    data[position % len(data)] = value
    check_harmless(with_array(honest(VILLAIN), name, Array(array.dtype, array.shape, array.stype, bytes(data))))


@FUZZ
@given(metric_records)
def test_random_metrics_never_raise(metrics: MetricRecord) -> None:
    check_harmless(RecordDict({**honest(VILLAIN), "metrics": metrics}))
