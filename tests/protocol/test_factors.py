"""Singular factors: exact, smaller than the model, and the same update again on the other side."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from thistle.experiments.settings import Model
from thistle.protocol import svd
from thistle.protocol.factors import (
    factor_bytes,
    factored,
    layer_rank,
    pays,
    sides,
    to_factors,
)
from thistle.protocol.layout import Entry, Layout, record_bytes, to_record
from thistle.protocol.svd import thin_svd
from thistle.tasks.models import build_model

QUICK = settings(max_examples=60, deadline=None, database=None)


def matrix(rows: int, columns: int, seed: int = 0, decay: float = 1.0) -> Tensor:
    """A random float32 matrix whose k-th singular value is about decay^k of the first."""
    generator = torch.Generator().manual_seed(seed)
    u, s, vt = torch.linalg.svd(torch.randn(rows, columns, generator=generator).double(), full_matrices=False)
    return ((u * (s[0] * decay ** torch.arange(len(s)))) @ vt).float()


def gap(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.norm(one.double() - other.double()) / (torch.linalg.norm(other.double()) + 1e-30))


@pytest.mark.parametrize(("rows", "columns"), [(5, 40), (40, 5), (7, 7), (1, 9), (9, 1), (1, 1), (32, 300)])
@pytest.mark.parametrize("decay", [1.0, 0.5, 0.05])
def test_as_torch_has_it(rows: int, columns: int, decay: float) -> None:
    given_matrix = matrix(rows, columns, decay=decay)
    u, s, vt = torch.linalg.svd(given_matrix.double(), full_matrices=False)
    for rank in {1, (min(rows, columns) + 1) // 2, min(rows, columns)}:
        found = thin_svd(given_matrix, rank)
        kept = len(found.sigma)
        assert kept <= rank and float(s[kept:rank].sum()) <= 1e-6 * float(s[0])
        torch.testing.assert_close(found.sigma, s[:kept], rtol=1e-6, atol=1e-9 * float(s[0]))
        for side in (found.u, found.v):
            assert float((side.T @ side - torch.eye(kept)).abs().max()) < 2e-4
        assert gap(found.product(), (u[:, :kept] * s[:kept]) @ vt[:kept]) < 1e-6
        assert bool((found.sigma[:-1] >= found.sigma[1:]).all())


def test_small_singular_values_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    original = svd._directly
    monkeypatch.setattr(svd, "_directly", lambda wide, rank: taken.append(rank) or original(wide, rank))
    thin_svd(matrix(8, 100), 8)
    assert not taken
    u, _, v = thin_svd(matrix(8, 100), 8)
    steep = (u * torch.tensor([1.0, *torch.linspace(3e-7, 2e-7, 7)]).double()) @ v.T
    found = thin_svd(steep, 8)
    assert taken and float((found.v.T @ found.v - torch.eye(8)).abs().max()) < 1e-9
    taken.clear()
    assert len(thin_svd(steep, 1).sigma) == 1 and not taken, "nobody wants the small ones"


def test_what_does_not_move_has_no_rank() -> None:
    assert [tuple(part.shape) for part in thin_svd(torch.zeros(3, 5), 2)] == [(3, 0), (0,), (5, 0)]
    low = torch.outer(torch.ones(6), torch.arange(1.0, 9.0))
    assert len(thin_svd(low, 6).sigma) == 1
    with pytest.raises(ValueError, match="not finite"):
        thin_svd(torch.tensor([[1.0, float("nan")]]), 1)


@QUICK
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 10**6), st.floats(1e-20, 1e20))
def test_all_factors_are_the_matrix_again(rows: int, columns: int, seed: int, scale: float) -> None:
    update = matrix(rows, columns, seed, decay=0.9) * scale
    full = thin_svd(update, min(rows, columns))
    assert gap(full.product(), update) < 1e-5
    assert gap((full.u.float() * full.sigma.float()) @ full.v.float().T, update) < 1e-5


@QUICK
@given(st.integers(0, 10**6), st.lists(st.booleans(), min_size=4, max_size=4))
def test_neither_the_product_nor_the_polar_factor_minds_signs(seed: int, flips: list[bool]) -> None:
    found = thin_svd(matrix(6, 11, seed), 4)
    signs = torch.tensor([-1.0 if flip else 1.0 for flip in flips]).double()
    turned = svd.Factors(found.u * signs, found.sigma, found.v * signs)
    torch.testing.assert_close(turned.product(), found.product())
    torch.testing.assert_close(turned.polar(), found.polar())


def test_ranks_and_what_pays() -> None:
    assert [layer_rank(f, 10, 128) for f in (0.01, 0.29, 0.5, 1.0)] == [1, 2, 5, 10]
    assert layer_rank(0.29, 100, 100) == 29
    assert pays(64, 128, 4096) and not pays(10, 10, 128) and not pays(1, 1, 50)


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn-cifar", (3, 32, 32)), ("cnn-emnist", (1, 8, 8)), ("vgg8", (1, 8, 8))]
)
def test_a_reply_at_the_starting_rank_is_smaller_than_the_model(name: str, shape: tuple[int, int, int]) -> None:
    network = build_model(Model(name=name), shape, 10, 0)
    layout, sent = Layout.of(network), to_record(network.state_dict())
    generator = torch.Generator().manual_seed(1)
    after = {
        key: value + 0.01 * torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for key, value in network.state_dict().items()
    }
    reply = to_factors(after, sent, layout, 0.5)
    whole = record_bytes([sent])
    assert record_bytes([reply]) < 0.8 * whole
    headers = 128 * len(reply)
    assert record_bytes([reply]) - headers <= factor_bytes(layout, 0.5) < layout.num_bytes
    for entry in layout.entries:
        assert (entry.name in reply) != factored(entry, 0.5)


def test_layers_travel_whole_where_factors_would_be_larger() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(40, 30), nn.BatchNorm1d(30))
    layout = Layout.of(network)
    assert [factored(entry, 0.5) for entry in layout.entries[:4]] == [False, False, True, False]
    assert [factored(entry, 1.0) for entry in layout.entries[:4]] == [False, False, False, False]
    assert not any(factored(entry, 0.1) for entry in layout.entries[4:])
    assert sides(Entry("conv", (8, 3, 5, 5), torch.float32, True)) == (8, 75)
