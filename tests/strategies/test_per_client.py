"""Numbers kept by client id: whatever the ids, each client gets back what was last said of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from thistle.strategies.memory.per_client import PerClient

IDS = st.integers(0, 2**64 - 1)
ROUNDS = st.lists(st.dictionaries(IDS, st.floats(-1e9, 1e9), max_size=8), max_size=6)


@given(ROUNDS, st.lists(IDS, max_size=8))
def test_it_is_a_dictionary_by_any_64_bit_id(rounds: list[dict[int, float]], others: list[int]) -> None:
    numbers, memory, expected = PerClient("score", unseen=0.5), {}, {}
    for said in rounds:
        memory |= numbers.after(memory, list(said), np.array(list(said.values())))
        expected |= said
    asked = [*expected, *others]
    assert numbers.of(memory, asked).tolist() == [expected.get(client, 0.5) for client in asked]


def test_what_was_remembered_before_is_not_changed() -> None:
    numbers = PerClient("score", unseen=0.0)
    before = numbers.after({}, [7], np.ones(1))
    numbers.after(before, [7, 2**63], np.zeros(2))
    assert numbers.of(before, [7, 2**63]).tolist() == [1.0, 0.0]
