"""A model, its vector and its record are the same thing."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord

from exchange import settings
from exchange.layout import Layout, load_record, sha256, to_record, to_state
from tasks.models import build_model


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


def test_the_fingerprint_sees_every_bit() -> None:
    state = {"w": torch.tensor([0.0, 1.0])}
    assert sha256(state) != sha256({"w": torch.tensor([-0.0, 1.0])})
    assert sha256(state) != sha256({"v": torch.tensor([0.0, 1.0])})
    assert sha256(state) != sha256({"w": torch.tensor([[0.0, 1.0]])})
