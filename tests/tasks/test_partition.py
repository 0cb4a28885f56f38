"""Partitions: disjoint, of the promised sizes, the same for the same seed, and honest about what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Task
from thistle.tasks.partition import make_partition

DISJOINT = ["iid", "dirichlet-even", "dirichlet", "shards"]
EVEN = ["iid", "dirichlet-even", "shards"]
KINDS = [*DISJOINT, "resample"]

quick = settings(max_examples=60, deadline=None)


def balanced(images: int, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(images) % classes)


def all_indices(partition) -> np.ndarray:
    return np.concatenate([partition.indices(client) for client in range(len(partition))])


def class_shares(partition, labels: np.ndarray, classes: int = 10) -> np.ndarray:
    """Clients by classes: each row is one client's class mix."""
    counts = [np.bincount(labels[partition.indices(i)], minlength=classes) for i in range(len(partition))]
    return np.array(counts) / sizes(partition)[:, None]


def sizes(partition) -> np.ndarray:
    return np.array([partition.size(client) for client in range(len(partition))])


@st.composite
def cases(draw, kinds=tuple(KINDS)):
    """A task that can be satisfied, labels (some classes may be absent), the number of classes, a seed."""
    classes = draw(st.integers(1, 6))
    labels = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=40, max_size=200)))
    kind = draw(st.sampled_from(kinds))
    clients = draw(st.integers(1, 4 if kind == "dirichlet" else 20))
    low = 1.0 if kind == "dirichlet" else 1e-3
    alpha = draw(st.floats(low, 1e6))
    task = Task(partition=kind, clients=clients, alpha=alpha, shards=2, client_size=draw(st.integers(1, 30)))
    return task, labels, classes, draw(st.integers(0, 2**40))


@quick
@given(cases())
def test_indices_are_valid_and_sizes_agree(case):
    task, labels, classes, seed = case
    partition = make_partition(task, labels, classes, seed)
    assert len(partition) == task.clients
    for client in range(len(partition)):
        indices = partition.indices(client)
        assert indices.dtype == np.int64
        assert len(indices) == partition.size(client) >= task.min_size
        assert ((indices >= 0) & (indices < len(labels))).all()


@quick
@given(cases(tuple(DISJOINT)))
def test_no_image_is_held_twice(case):
    indices = all_indices(make_partition(*case))
    assert len(np.unique(indices)) == len(indices)


@quick
@given(cases())
def test_same_seed_same_shares_in_any_order_of_asking(case):
    first, second = make_partition(*case), make_partition(*case)
    forth = [first.indices(i) for i in range(len(first))]
    back = [second.indices(i) for i in reversed(range(len(second)))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(forth, back, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_other_shares(kind):
    labels = balanced(500)
    one, two = (all_indices(make_partition(Task(partition=kind, clients=10), labels, 10, seed)) for seed in (1, 2))
    assert not np.array_equal(one, two)


@quick
@given(st.integers(1, 60), st.integers(60, 300), st.floats(1e-3, 1e3))
def test_dirichlet_even_gives_everybody_the_same_number(clients, images, alpha):
    partition = make_partition(Task(partition="dirichlet-even", clients=clients, alpha=alpha), balanced(images), 10, 1)
    assert (sizes(partition) == images // clients).all()


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_every_image_belongs_to_somebody(kind):
    partition = make_partition(Task(partition=kind, clients=7, alpha=1.0), balanced(503), 10, 1)
    assert sorted(all_indices(partition)) == list(range(503))


@pytest.mark.parametrize("kind", ["dirichlet-even", "dirichlet", "resample"])
def test_a_large_alpha_is_nearly_iid_and_a_small_one_is_not(kind):
    labels = balanced(5000)
    task = Task(partition=kind, clients=5, alpha=1e6, client_size=1000)
    even = class_shares(make_partition(task, labels, 10, 1), labels)
    skewed = class_shares(make_partition(task.model_copy(update={"alpha": 0.1}), labels, 10, 1), labels)
    assert np.abs(even - 0.1).max() < 0.05
    assert skewed.max() > 0.3


@pytest.mark.parametrize("kind", ["dirichlet-even", "resample"])
@pytest.mark.parametrize("alpha", [1e-300, 1.7e308])
def test_extreme_alphas_still_share_out(kind, alpha):
    partition = make_partition(Task(partition=kind, clients=4, alpha=alpha), balanced(200), 10, 1)
    assert (sizes(partition) == 50).all()


def test_a_client_follows_its_own_mix_while_its_classes_last():
    labels = balanced(10_000)
    shares = class_shares(make_partition(Task(clients=200, alpha=0.01), labels, 10, 3), labels)
    assert np.median(shares.max(axis=1)) > 0.9


def test_shards_hold_few_classes():
    labels = balanced(1000)
    partition = make_partition(Task(partition="shards", clients=50, shards=2), labels, 10, 1)
    assert all(len(np.unique(labels[partition.indices(client)])) <= 2 for client in range(50))


def test_dirichlet_repeats_until_min_size():
    labels = balanced(1000)
    task = Task(partition="dirichlet", clients=10, alpha=0.1)
    assert sizes(make_partition(task, labels, 10, 1)).min() < 40
    assert sizes(make_partition(task.model_copy(update={"min_size": 40}), labels, 10, 1)).min() >= 40


def test_dirichlet_fills_nobody_far_beyond_the_mean():
    """A client at n/N or above gets none of the next class, so it holds at most n/N and one class."""
    partition = make_partition(Task(partition="dirichlet", clients=5, alpha=0.1), balanced(5000), 10, 1)
    assert sizes(partition).max() < 5000 // 5 + 500


def test_resample_of_a_million_clients_stores_nothing_for_each():
    labels = balanced(1000)
    partition = make_partition(Task(partition="resample", clients=1_000_000), labels, 10, 1)
    few = make_partition(Task(partition="resample", clients=8), labels, 10, 1)
    assert len(partition) == 1_000_000
    arrays = [value for value in vars(partition).values() if isinstance(value, np.ndarray)]
    assert sum(map(len, arrays)) <= len(labels) + 10
    assert len(partition.indices(999_999)) == 50
    assert np.array_equal(partition.indices(7), few.indices(7))


@pytest.mark.parametrize("kind", ["iid", "resample"])
@pytest.mark.parametrize("client", [-1, 5])
def test_an_unknown_client_is_an_index_error(kind, client):
    partition = make_partition(Task(partition=kind, clients=5), balanced(100), 10, 1)
    with pytest.raises(IndexError):
        partition.indices(client)
    with pytest.raises(IndexError):
        partition.size(client)


@pytest.mark.parametrize("kind", DISJOINT)
def test_more_clients_than_images(kind):
    with pytest.raises(UserError, match=r"task\.clients = 2000 but there are only 1500 training images; .*resample"):
        make_partition(Task(partition=kind, clients=2000), balanced(1500), 10, 1)


def test_more_shards_than_images():
    with pytest.raises(UserError, match=r"task\.shards = 4 .*task\.clients = 50 makes 200 .*100.*at most 2 shards"):
        make_partition(Task(partition="shards", clients=50, shards=4), balanced(100), 10, 1)


@pytest.mark.parametrize("kind", [*EVEN, "dirichlet"])
def test_a_min_size_that_the_images_cannot_give(kind):
    with pytest.raises(UserError, match=r"task\.min-size = 31 but .* only 30 .*lower task\.min-size or task\.clients"):
        make_partition(Task(partition=kind, clients=50, min_size=31, shards=1), balanced(1500), 10, 1)


def test_a_min_size_above_the_client_size_of_resample():
    with pytest.raises(UserError, match=r"task\.min-size = 60 .*task\.client-size = 50.*raise task\.client-size"):
        make_partition(Task(partition="resample", min_size=60), balanced(100), 10, 1)


def test_dirichlet_gives_up_with_the_three_keys():
    with pytest.raises(UserError, match=r"task\.min-size = 5 .*1000 draws.*task\.alpha = 0\.01 .*task\.clients = 50"):
        make_partition(Task(partition="dirichlet", clients=50, alpha=0.01, min_size=5), balanced(500), 10, 1)


def test_no_images_at_all():
    with pytest.raises(UserError, match="no training images"):
        make_partition(Task(partition="resample"), np.zeros(0, dtype=np.int64), 10, 1)
