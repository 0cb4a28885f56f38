"""client.clip: no accepted update stays longer than a multiple of what is usual, whatever the strategy.

That every strategy takes clipped updates, and resumes with them, is in test_federation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.federations import model_sha, rounds, run, tiny
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.protocol.answer import Answer
from thistle.protocol.layout import Layout, to_record
from thistle.server.guard.clipping import WINDOW, Clipping, length, lower_median
from thistle.server.guard.inspection import Inspection

TINY = 1e-18
"""Squares of smaller numbers have no digits, or none at all, in float32."""
QUICK = settings(max_examples=60, deadline=None, database=None)
LAYOUT = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
SENT: ArrayRecord = to_record(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict())
LONG = {"attack.kind": "sign-flip", "attack.strength": 500.0, "attack.clients": "3"}
"""One client whose update is some hundred times as long as the others', within the guard's bound."""
ALL = {"rounds": 6, "task.clients": 10, "client.per-round": 10, "client.epochs": 2, "client.batch-size": 10}


def inspected(*lengths: float) -> Inspection:
    """Answers of clients 0, 1, … with updates of these lengths, each in its own direction."""
    updates = np.array([np.roll(np.eye(LAYOUT.size)[0], n) * size for n, size in enumerate(lengths)], np.float32)
    return Inspection(updates, [Answer(client, {}, {"1.running_mean": np.zeros(2)}) for client in range(len(lengths))])


def clipping(factor: float = 2.0, models: bool = False) -> Clipping:
    return Clipping(factor, LAYOUT, models)


def final_accuracy(folder: RunFolder) -> float:
    return float(rounds(folder)[-1]["accuracy"])


def test_long_updates_become_as_long_as_the_bound_and_others_stay() -> None:
    inspection = inspected(1.0, 2.0, 3.0, 100.0, 3.5)
    bound, parts = clipping(1.5).apply(inspection, SENT)
    assert bound == 4.5 and parts == {3: 0.045}
    assert [length(row) for row in inspection.updates] == pytest.approx([1.0, 2.0, 3.0, 4.5, 3.5])
    assert inspection.updates[3].argmax() == 3, "the direction stays"


def test_a_model_becomes_what_was_sent_plus_the_clipped_update() -> None:
    inspection = inspected(1.0, 1.0, 50.0)
    clipping(2.0, models=True).apply(inspection, SENT)
    assert inspection.answers[0].arrays.keys() == {"1.running_mean"}, "who is not clipped keeps its bytes"
    arrays = inspection.answers[2].arrays
    assert (arrays["1.running_mean"] == 0).all(), "buffers are not part of an update"
    state = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "1.running_mean"}
    sent = LAYOUT.vector({entry.name: torch.from_numpy(SENT[entry.name].numpy()) for entry in LAYOUT.entries})
    assert torch.allclose(LAYOUT.vector(state) - sent, torch.from_numpy(inspection.updates[2]), atol=1e-6)
    assert {name: array.dtype for name, array in arrays.items() if name in state} == dict.fromkeys(state, np.float32)


def test_a_round_without_replies_changes_nothing() -> None:
    clip = clipping()
    clip.apply(inspected(1.0, 2.0), SENT)
    bound, parts = clip.apply(inspected(), SENT)
    assert np.isnan(bound) and not parts and len(clip.recent) == 1


LENGTHS = st.lists(st.floats(0.0, 1e6, width=32), min_size=1, max_size=9)


@QUICK
@given(rounds=st.lists(st.tuples(LENGTHS, st.lists(st.floats(0.0, 1e9, width=32), max_size=8)), min_size=1, max_size=9))
def test_a_minority_cannot_push_the_bound_past_the_longest_honest_update(
    rounds: list[tuple[list[float], list[float]]],
) -> None:
    """Nor below the shortest: whatever some of the last rounds' replies say, if they are at most half of all."""
    clip, seen = clipping(1.5), list[tuple[list[float], list[float]]]()
    for honest, others in rounds:
        hostile = others[: len(honest)]
        seen = [*seen, (honest, hostile)][-WINDOW:]
        inspection = Inspection(np.array([[value] for value in [*honest, *hostile]], np.float32))
        inspection.answers = [Answer(client, {}, {}) for client in range(len(inspection.updates))]
        bound, _ = clip.apply(inspection, SENT)
        all_honest = [value for one, _ in seen for value in one]
        assert bound <= 1.5 * max(all_honest) * (1 + 1e-6) + TINY
        if sum(len(bad) for _, bad in seen) < len(all_honest):
            assert bound >= 1.5 * min(all_honest) * (1 - 1e-6) - TINY
        assert max(map(length, inspection.updates)) <= bound * (1 + 1e-6) + TINY


@QUICK
@given(LENGTHS, st.randoms())
def test_the_order_of_arrival_does_not_matter(lengths: list[float], random: Any) -> None:
    shuffled = random.sample(lengths, len(lengths))
    one, other = clipping(), clipping()
    assert one.apply(_flat(lengths), SENT)[0] == other.apply(_flat(shuffled), SENT)[0]
    assert [array.tolist() for array in one.recent] == [array.tolist() for array in other.recent]


def _flat(lengths: list[float]) -> Inspection:
    answers = [Answer(client, {}, {}) for client in range(len(lengths))]
    return Inspection(np.array(lengths, np.float32)[:, None], answers)


def test_what_is_remembered_comes_back() -> None:
    clip, again = clipping(), clipping()
    for number in range(WINDOW + 3):
        clip.apply(inspected(1.0 + number, 2.0, 7.0), SENT)
    again.restore(clip.state())
    assert len(again.recent) == WINDOW
    assert again.apply(inspected(9.0), SENT) == clip.apply(inspected(9.0), SENT)


def test_the_middle_is_somebodys_length() -> None:
    assert lower_median(np.array([4.0, 1.0, 3.0, 2.0])) == 2.0
    assert lower_median(np.array([5.0, 1.0, 3.0])) == 3.0


@pytest.mark.parametrize("name", ["fedavg", "flwr-fedavg", "scaffold", "fedsvd"])
def test_one_long_reply_costs_a_mean_next_to_nothing(tmp_path: Path, name: str) -> None:
    keys = {**ALL, "strategy.name": name, "client.momentum": 0.0}
    once = {**LONG, "attack.start": 3, "attack.stop": 3}
    honest = final_accuracy(run(tiny(tmp_path, "honest", **keys)))
    alone = final_accuracy(run(tiny(tmp_path, "alone", **keys, **once)))
    clipped = run(tiny(tmp_path, "clipped", **keys, **once, **{"client.clip": 1.5}))
    assert alone < honest - 0.3, "the reply does harm, or this tests nothing"
    assert final_accuracy(clipped) > honest - 0.05
    assert rounds(clipped)[2]["clipped"] >= 1 and rounds(clipped)[2]["clip_bound"] > 0
    said = [line for line in read_lines(clipped.verdicts) if line["round"] == 3 and line["client"] == 3]
    assert said[0]["verdict"] == "accepted" and 0 < said[0]["clipped"] < 0.05
    lines = rounds(clipped)
    assert read_json(clipped.summary)["clipped"] == sum(line["clipped"] for line in lines) < len(lines) * 5


@pytest.mark.parametrize("name", ["fedavg", "flwr-fedavg"])
def test_off_and_a_bound_nobody_reaches_change_no_bit(tmp_path: Path, name: str) -> None:
    keys = {"strategy.name": name}
    usual = run(tiny(tmp_path, "usual", **keys))
    assert "clipped" not in rounds(usual)[0] and read_json(usual.summary)["clipped"] == 0
    assert usual.load_experiment().client.clip == "off"
    for clip in ("off", 1e6):
        assert model_sha(run(tiny(tmp_path, f"clip-{clip}", **keys, **{"client.clip": clip}))) == model_sha(usual)


def test_workers_do_not_change_the_bound(tmp_path: Path) -> None:
    keys = {"client.clip": 0.9}
    shas = {model_sha(run(tiny(tmp_path, f"w{n}", **keys, **{"runtime.workers": n}))) for n in (1, 3)}
    assert len(shas) == 1
