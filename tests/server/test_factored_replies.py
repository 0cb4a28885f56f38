"""Replies made of factors: as hard to abuse as a model, and worth the same update."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.hostile import HOSTILE, arrays_of, header, with_array, with_arrays
from tests.messages import reply, unchecked
from thistle.protocol.factors import SIGMA, U, V, factored, layer_rank, sides, to_factors
from thistle.protocol.layout import Layout, record_bytes, to_record, to_state
from thistle.protocol.svd import thin_svd
from thistle.protocol.verdict import Verdict
from thistle.server.guard.inspection import Expected, Guard, Inspection
from thistle.strategies.flower import as_messages

CLASSES, CLIENT, OTHER, RANK = 3, 4, 7, 0.5
KNOWN = frozenset({"num-examples", "loss", "seconds"})
EXPECTED = Expected(KNOWN, required=KNOWN)

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(72, 20), nn.Linear(20, CLASSES))
LAYOUT = Layout.of(MODEL)
SENT = to_record(MODEL.state_dict())
LAYER = "3.weight"
FUZZ = settings(max_examples=150, deadline=None, database=None)


def trained(seed: int = 0, scale: float = 0.01) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + scale * torch.randn(value.shape, generator=generator).abs()
        if value.is_floating_point()
        else value
        for name, value in to_state(SENT).items()
    }


def honest(rank: float = RANK, seed: int = 0) -> RecordDict:
    arrays = to_factors(trained(seed), SENT, LAYOUT, rank)
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 50, "loss": 1.5, "seconds": 0.1})})


HONEST, NEIGHBOUR = honest(), honest(seed=1)


def inspect(*contents: RecordDict, rank: float = RANK) -> Inspection:
    """What becomes of the client's reply; another one's stands beside it."""
    replies = [unchecked(reply(CLIENT, content)) for content in contents] + [unchecked(reply(OTHER, NEIGHBOUR))]
    guard = Guard(LAYOUT, CLASSES, lambda client: 500)
    found = guard.inspect(SENT, [CLIENT, OTHER], replies, EXPECTED, "1", {CLIENT: rank, OTHER: RANK})
    assert found.verdicts[1] == Verdict(OTHER, "accepted")
    return found


def rebuilt(content: RecordDict, rank: float = RANK) -> dict[str, Tensor]:
    found = inspect(content, rank=rank)
    assert found.verdicts[0] == Verdict(CLIENT, "accepted"), found.verdicts[0].reason
    record = as_messages(found.answers, 1)[0].content.array_records["arrays"]
    assert list(record) == list(SENT)
    assert all((record[name].shape, record[name].dtype) == (SENT[name].shape, SENT[name].dtype) for name in SENT)
    return to_state(record)


def test_factors_become_the_update_cut_to_its_rank() -> None:
    after, before, found = trained(), to_state(SENT), rebuilt(honest())
    assert any(factored(entry, RANK) for entry in LAYOUT.entries)
    for entry in LAYOUT.entries:
        if not factored(entry, RANK):
            assert torch.equal(found[entry.name], after[entry.name])
            continue
        update = (after[entry.name] - before[entry.name]).reshape(sides(entry))
        expected = thin_svd(update, layer_rank(RANK, *sides(entry))).product().reshape(entry.shape)
        torch.testing.assert_close(found[entry.name], before[entry.name] + expected.float(), rtol=0, atol=1e-6)


def test_all_of_the_rank_is_all_of_the_update() -> None:
    """Layers whose factors would be larger travel whole, the others lose nothing."""
    for rank in (0.75, 1.0):
        found, after = rebuilt(honest(rank), rank), trained()
        for entry in LAYOUT.entries:
            if rank == 1.0 or not factored(entry, rank):
                torch.testing.assert_close(found[entry.name], after[entry.name], rtol=0, atol=1e-5)


def test_fewer_factors_than_asked_for_are_fine() -> None:
    before = to_state(SENT)
    resting = to_factors(before, SENT, LAYOUT, RANK)
    assert resting[LAYER + SIGMA].shape == (0,)
    found = rebuilt(RecordDict({**honest(), "arrays": resting}))
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_signs_do_not_matter() -> None:
    content = honest()
    arrays = arrays_of(content)
    for suffix in (U, V):
        flipped = arrays[LAYER + suffix].numpy() * np.where(np.arange(10) % 2, -1, 1).astype(np.float32)
        arrays[LAYER + suffix] = Array(flipped)
    found, plain = rebuilt(with_arrays(content, arrays)), rebuilt(content)
    torch.testing.assert_close(found[LAYER], plain[LAYER], rtol=0, atol=1e-7)


def test_bytes_are_those_that_were_sent() -> None:
    sent = record_bytes([honest().array_records["arrays"]]) + record_bytes([honest(seed=1).array_records["arrays"]])
    found = inspect(honest())
    assert found.num_bytes == sent
    assert found.num_bytes < record_bytes(m.content.array_records["arrays"] for m in as_messages(found.answers, 1))


Attack = Callable[[RecordDict], RecordDict]


def changed(suffix: str, change: Callable[[np.ndarray], np.ndarray], layer: str = LAYER) -> Attack:
    """One array of a layer's factors replaced."""

    def attack(content: RecordDict) -> RecordDict:
        name = layer + suffix
        return with_array(content, name, Array(np.ascontiguousarray(change(arrays_of(content)[name].numpy()))))

    return attack


def every(change: Callable[[np.ndarray], np.ndarray]) -> Attack:
    """All three arrays of a layer's factors replaced."""

    def attack(content: RecordDict) -> RecordDict:
        for suffix in (U, SIGMA, V):
            content = changed(suffix, change)(content)
        return content

    return attack


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[0] = value
        return array

    return change


def without(name: str) -> Attack:
    return lambda content: with_arrays(content, {key: a for key, a in arrays_of(content).items() if key != name})


def forged(shape: tuple[int, ...], suffix: str = SIGMA) -> Attack:
    def attack(content: RecordDict) -> RecordDict:
        data = header(shape) + bytes(40)
        return with_array(content, LAYER + suffix, Array("float32", shape, "numpy.ndarray", data))

    return attack


def wider(content: RecordDict) -> RecordDict:
    """True factors, orthonormal and all, but more of them than were asked for."""
    more = to_factors(trained(), SENT, LAYOUT, 0.7)
    return with_arrays(content, {**arrays_of(content), **{LAYER + s: more[LAYER + s] for s in (U, SIGMA, V)}})


def whole_model(content: RecordDict) -> RecordDict:
    return with_arrays(content, dict(to_record(trained())))


def model_and_factors(content: RecordDict) -> RecordDict:
    """The paper's hole: good factors, and a bad model beside them."""
    return with_array(content, LAYER, Array(np.full((20, 72), 9.0, np.float32)))


TRICKS: dict[str, tuple[Attack, str]] = {
    "rank above what was asked": (wider, "factors"),
    "a rank of 2^40": (forged((2**40,)), "factors"),
    "a negative rank": (forged((-1,)), "shape"),
    "sigma in two dimensions": (forged((10, 1)), "shape"),
    "sigma without dimensions": (forged(()), "shape"),
    "u of 300 GiB": (forged((20, 300 * 2**27), U), "shape"),
    "v declared but not there": (forged((72, 10), V), "encoding"),
    "sigma of another length": (changed(SIGMA, lambda s: s[:-1]), "shape"),
    "u of another width": (changed(U, lambda u: u[:, :-1]), "shape"),
    "u turned": (changed(U, lambda u: u.T), "shape"),
    "NaN in u": (changed(U, put(np.nan)), "not finite"),
    "NaN in sigma": (changed(SIGMA, put(np.nan)), "not finite"),
    "Inf in v": (changed(V, put(np.inf)), "not finite"),
    "1e30 in v": (changed(V, put(1e30)), "magnitude"),
    "u twice as long": (changed(U, lambda u: 2 * u), "factors"),
    "u a hundred times as long": (changed(U, lambda u: 100 * u), "magnitude"),
    "v a little too long": (changed(V, lambda v: v * np.float32(1.002)), "factors"),
    "u all zero": (changed(U, np.zeros_like), "factors"),
    "one column twice": (changed(U, lambda u: u[:, [0, 0, *range(2, 10)]]), "factors"),
    "sigma negative": (changed(SIGMA, lambda s: -s), "factors"),
    "the last sigma negative": (changed(SIGMA, lambda s: np.append(s[:-1], -s[-1]).astype(np.float32)), "factors"),
    "sigma ascending": (changed(SIGMA, lambda s: s[::-1]), "factors"),
    "sigma huge": (changed(SIGMA, lambda s: np.full_like(s, 9e5)), "magnitude"),
    "sigma absurd": (changed(SIGMA, lambda s: np.full_like(s, 1e20)), "magnitude"),
    "double precision": (changed(SIGMA, lambda s: s.astype(np.float64)), "dtype"),
    "integers": (every(lambda a: a.astype(np.int32)), "dtype"),
    "no u": (without(LAYER + U), "keys"),
    "no sigma": (without(LAYER + SIGMA), "keys"),
    "no v": (without(LAYER + V), "keys"),
    "no bias": (without("3.bias"), "keys"),
    "the model instead": (whole_model, "keys"),
    "the model besides": (model_and_factors, "keys"),
}


@pytest.mark.parametrize("name", TRICKS)
def test_forged_factors_are_rejected(name: str) -> None:
    attack, reason = TRICKS[name]
    verdict = inspect(attack(HONEST)).verdicts[0]
    assert (verdict.verdict, verdict.step, verdict.reason.split(":")[0]) == ("rejected", "guard", reason)
    assert verdict.reason.isprintable() and len(verdict.reason) <= 200


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_in_a_model_is_hostile_in_factors(name: str) -> None:
    attack, reason = HOSTILE[name]
    verdict = inspect(attack(HONEST)).verdicts[0]
    assert (verdict.verdict, verdict.reason.split(":")[0]) == ("rejected", reason)


def test_factors_that_nobody_asked_for_are_rejected() -> None:
    guard = Guard(LAYOUT, CLASSES, lambda client: 500)
    verdict = guard.inspect(SENT, [CLIENT], [unchecked(reply(CLIENT, honest()))], EXPECTED, "1").verdicts[0]
    assert verdict.reason.startswith("keys")


NAMES = list(HONEST.array_records["arrays"])
arrays = st.builds(
    Array,
    st.sampled_from(["float32", "float64", "object"]),
    st.lists(st.integers(-2, 2**40), max_size=3).map(tuple),
    st.just("numpy.ndarray"),
    st.binary(max_size=300),
)


def check_harmless(content: RecordDict) -> None:
    reason = inspect(content).verdicts[0].reason
    assert not (reason.startswith("records: ") and "Error: " in reason)


@FUZZ
@given(st.dictionaries(st.sampled_from(NAMES), arrays, min_size=1, max_size=4))
def test_random_arrays_never_raise(some: dict[str, Array]) -> None:
    check_harmless(with_arrays(HONEST, {**arrays_of(HONEST), **some}))


@FUZZ
@given(st.sampled_from(NAMES), st.integers(0, 10**4), st.integers(0, 255))
def test_a_changed_byte_never_raises(name: str, position: int, value: int) -> None:
    array = arrays_of(HONEST)[name]
    data = bytearray(array.data)
    data[position % len(data)] = value
    check_harmless(with_array(HONEST, name, Array(array.dtype, array.shape, array.stype, bytes(data))))


def test_an_empty_record_is_not_a_reply() -> None:
    content = RecordDict({**honest(), "arrays": ArrayRecord({})})
    assert inspect(content).verdicts[0].reason.startswith("keys")
