"""Choosing images by class: right shares, and the same ones for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thistle.tasks.stratified import stratified, stratified_always


def by_lot(labels: np.ndarray, size: int) -> np.ndarray:
    return stratified(labels, size, np.random.default_rng(0))


@pytest.mark.parametrize("choose", [by_lot, stratified_always])
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=200), part=st.floats(0, 1))
def test_every_class_has_its_share_to_within_one(choose, labels, part):
    labels, size = np.array(labels), round(part * len(labels))
    chosen = choose(labels, size)
    assert len(chosen) == size
    assert (np.diff(chosen) > 0).all()
    wanted = np.bincount(labels) * size / len(labels)
    assert (np.abs(np.bincount(labels[chosen], minlength=len(wanted)) - wanted) < 1).all()
    np.testing.assert_array_equal(chosen, choose(labels, size))


@pytest.mark.parametrize("choose", [by_lot, stratified_always])
def test_the_largest_remainders_are_rounded_up(choose):
    labels = np.repeat([0, 1, 2], [60, 30, 10])  # of 11 images: 6.6, 3.3, 1.1
    np.testing.assert_array_equal(np.bincount(labels[choose(labels, 11)]), [7, 3, 1])


def test_lots_differ():
    labels = np.arange(100) % 10
    one, two = (stratified(labels, 20, np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_the_fixed_choice_never_changes():
    """Test sets and cut-down training sets are chosen by it: another choice would be other data."""
    chosen = stratified_always(np.arange(1000) % 7, 123)
    assert hashlib.sha256(chosen.astype("<i8").tobytes()).hexdigest()[:16] == "4b3ac2f9bfa526be"
