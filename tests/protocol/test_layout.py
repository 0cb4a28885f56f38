"""A model, its vector and its record are the same thing."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from thistle.experiments import settings
from thistle.protocol.layout import Layout, load_record, sha256, to_array, to_record, to_state
from thistle.tasks.models import build_model


def test_vector_and_record_round_trip_with_buffers() -> None:
    model = build_model(settings.Model(name="vgg8"), (3, 8, 8), 4, seed=1)
    layout = Layout.of(model)
    state = model.state_dict()
    vector = layout.vector(state)
    assert layout.size == sum(p.numel() for p in model.parameters()) == len(vector)
    assert {entry.name for entry in layout.buffers} == {name for name, _ in model.named_buffers()}
    again = layout.state(vector, state)
    assert sha256(again) == sha256(state) == sha256(to_state(to_record(state)))


def test_loading_a_record_overwrites_everything() -> None:
    one, two = (build_model(settings.Model(name="vgg8"), (1, 8, 8), 3, seed) for seed in (1, 2))
    assert sha256(one.state_dict()) != sha256(two.state_dict())
    load_record(two, to_record(one.state_dict()))
    assert sha256(one.state_dict()) == sha256(two.state_dict())


def test_flower_reads_our_records() -> None:
    state = build_model(settings.Model(), (1, 8, 8), 10, seed=0).state_dict()
    record = to_record(state)
    theirs = ArrayRecord(state)
    for name, array in theirs.items():
        assert torch.equal(torch.from_numpy(array.numpy()), torch.from_numpy(record[name].numpy()))


SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)


@given(hnp.arrays(st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]), SHAPES))
def test_an_array_is_encoded_as_flower_encodes_it(values: np.ndarray) -> None:
    for array in (values, values.T, values[..., ::2] if values.ndim else values):
        theirs, ours = Array(np.ascontiguousarray(array).reshape(array.shape)), to_array(array)
        assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
        assert ours.data == theirs.data


def test_the_fingerprint_sees_every_bit() -> None:
    state = {"w": torch.tensor([0.0, 1.0])}
    assert sha256(state) != sha256({"w": torch.tensor([-0.0, 1.0])})
    assert sha256(state) != sha256({"v": torch.tensor([0.0, 1.0])})
    assert sha256(state) != sha256({"w": torch.tensor([[0.0, 1.0]])})
