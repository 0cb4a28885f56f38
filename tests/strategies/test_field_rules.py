"""Rules of the field beside the classics, each against its definition in plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thistle.strategies import aggregators

SEEDS = st.integers(0, 2**31)
PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


def block(n: int = 11, d: int = 37, seed: int = 0, shift: float = 0.5) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + shift


def shares(n: int, seed: int = 0) -> Tensor:
    """Weights from 1 to about 20 times as much."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05


def close(actual: Tensor, expected: np.ndarray, rtol: float = 1e-5) -> None:
    scale = np.abs(expected).max() + 1e-30
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=rtol, atol=rtol * scale)


# ---- norm clipping ---------------------------------------------------------------------------------------------


def ref_clipped_mean(x: np.ndarray, w: np.ndarray, bound: float | None) -> np.ndarray:
    lengths = [np.sqrt(sum(v * v for v in row)) for row in x]
    limit = sorted(lengths)[len(x) // 2] if bound is None and len(x) % 2 else bound
    if limit is None:
        middle = sorted(lengths)[len(x) // 2 - 1 : len(x) // 2 + 1]
        limit = sum(middle) / 2
    total = np.zeros(x.shape[1])
    for row, length, weight in zip(x, lengths, w / w.sum(), strict=True):
        total += weight * row * (limit / length if length > limit else 1.0)
    return total


@pytest.mark.parametrize("bound", [None, 0.5, 6.0, 1e4])
@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_norm_clipping(n: int, bound: float | None) -> None:
    u, w = block(n), shares(n)
    u[0] *= 30
    found = aggregators.clipped_mean(u, w, bound)
    close(found.vector, ref_clipped_mean(u.double().numpy(), w.numpy(), bound))
    close(aggregators.combine(u, found.weights), found.vector.double().numpy())
    assert float(found.weights.sum()) <= 1 + 1e-12


def test_norm_clipping_bounds_what_one_client_can_do() -> None:
    u = block(10)
    u[3] *= 1e20
    found = aggregators.clipped_mean(u).vector
    honest = torch.cat([u[:3], u[4:]])
    assert float(found.norm()) <= float(honest.norm(dim=1).max()) * 1.001
    zeros = aggregators.clipped_mean(torch.zeros(4, 5))
    assert not zeros.vector.any() and zeros.weights.tolist() == [0.25] * 4


# ---- weights by coordinate -------------------------------------------------------------------------------------


def ref_weighted_median(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape[1])
    for k in range(x.shape[1]):
        ranked = sorted(zip(x[:, k], w / w.sum(), strict=True))
        below = 0.0
        for place, (value, weight) in enumerate(ranked):
            below += weight
            if abs(below - 0.5) < 1e-6:
                out[k] = (value + ranked[place + 1][0]) / 2
                break
            if below > 0.5:
                out[k] = value
                break
    return out


def ref_weighted_trimmed(x: np.ndarray, w: np.ndarray, beta: float) -> np.ndarray:
    out = np.zeros(x.shape[1])
    for k in range(x.shape[1]):
        below = 0.0
        for value, weight in sorted(zip(x[:, k], w / w.sum(), strict=True)):
            part = min(below + weight, 1 - beta) - max(below, beta)
            out[k] += max(0.0, part) * value / (1 - 2 * beta)
            below += weight
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 13, 20])
def test_weighted_median(n: int, dtype: torch.dtype) -> None:
    for seed in range(4):
        u, w = block(n, 101, seed).to(dtype), shares(n, seed)
        close(aggregators.coordinate_median(u, w).vector, ref_weighted_median(u.double().numpy(), w.numpy()), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "beta"), [(1, 0.3), (2, 0.1), (5, 0.0), (8, 0.2), (13, 0.45), (20, 0.25)])
def test_weighted_trimmed_mean(n: int, beta: float, dtype: torch.dtype) -> None:
    for seed in range(4):
        u, w = block(n, 101, seed).to(dtype), shares(n, seed)
        expected = ref_weighted_trimmed(u.double().numpy(), w.numpy(), beta)
        close(aggregators.trimmed_mean(u, beta=beta, weights=w).vector, expected, 1e-6)


def test_a_trimmed_mean_by_number_cuts_that_share_of_the_weight() -> None:
    u, w = block(10), shares(10)
    by_number = aggregators.trimmed_mean(u, 2, weights=w)
    assert torch.equal(by_number.vector, aggregators.trimmed_mean(u, beta=0.2, weights=w).vector)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 11, 20])
def test_equal_weights_give_the_bits_of_no_weights(n: int) -> None:
    u = block(n, 501)
    for same in (1.0, 0.1, 7.0):
        w = torch.full((n,), same, dtype=torch.float64)
        for rule in (aggregators.coordinate_median, lambda u, w=None: aggregators.trimmed_mean(u, beta=0.2, weights=w)):
            plain, weighted = rule(u), rule(u, w)
            assert torch.equal(plain.vector, weighted.vector) and torch.equal(plain.weights, weighted.weights)


@pytest.mark.parametrize("n", [3, 4, 10, 11])
def test_nearly_equal_weights_give_nearly_the_same(n: int) -> None:
    """So that the two ways to compute it agree, ties at one half included."""
    u, w = block(n, 501), torch.ones(n, dtype=torch.float64)
    w[0] += 1e-9
    close(aggregators.coordinate_median(u, w).vector, aggregators.coordinate_median(u).vector.numpy(), 1e-6)
    plain = aggregators.trimmed_mean(u, 1)
    close(aggregators.trimmed_mean(u, 1, weights=w).vector, plain.vector.numpy(), 1e-6)


def test_a_weight_is_worth_that_many_copies() -> None:
    u = block(6, 203)
    copies = torch.tensor([1, 3, 2, 1, 5, 1])
    repeated = u.repeat_interleave(copies, dim=0)
    median = aggregators.coordinate_median(u, copies.double())
    close(median.vector, aggregators.coordinate_median(repeated).vector.numpy(), 1e-6)
    f = 3
    trimmed = aggregators.trimmed_mean(u, beta=f / len(repeated), weights=copies.double())
    close(trimmed.vector, aggregators.trimmed_mean(repeated, f).vector.numpy(), 1e-6)


def weighted_rules() -> dict[str, Callable[[Tensor, Tensor], aggregators.Aggregate]]:
    return {
        "median": aggregators.coordinate_median,
        "trimmed mean": lambda u, w: aggregators.trimmed_mean(u, beta=0.2, weights=w),
    }


@pytest.mark.parametrize("name", weighted_rules())
@PROPERTY
@given(seed=SEEDS, n=st.integers(1, 25), d=st.integers(1, 60), levels=st.sampled_from([2, 5, 10**6]))
def test_weighted_rules_do_not_go_by_order(name: str, seed: int, n: int, d: int, levels: int) -> None:
    """Few levels: many equal values with other weights."""
    rule, w = weighted_rules()[name], shares(n, seed)
    u = (block(n, d, seed) * levels / 4).round() / levels
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    first, second = rule(u, w), rule(u[order], w[order])
    close(second.vector, first.vector.numpy(), 1e-5)
    close(second.weights, first.weights[order].numpy(), 1e-6)
    assert float(first.weights.sum()) == pytest.approx(1) and (first.weights >= 0).all()
    assert (first.vector >= u.min(0).values - 1e-6).all() and (first.vector <= u.max(0).values + 1e-6).all()


@pytest.mark.parametrize("name", weighted_rules())
@PROPERTY
@given(seed=SEEDS, scale=st.sampled_from([-3.0, 1e-3, 2.0, 1e4]), shift=st.sampled_from([-50.0, 0.0, 3.0]))
def test_weighted_rules_move_and_scale_with_the_updates(name: str, seed: int, scale: float, shift: float) -> None:
    rule, w, u = weighted_rules()[name], shares(11, seed), block(11, 40, seed, shift=0.0)
    expected = rule(u, w).vector * scale + shift
    np.testing.assert_allclose(rule(u * scale + shift, w).vector, expected, atol=1e-5 * (abs(scale) + abs(shift)))


@pytest.mark.parametrize("name", weighted_rules())
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-40, 1e38, -1e30])
def test_weights_in_the_last_bits_do_not_show(name: str, value: float) -> None:
    """A weight travels beside its value: zeros of both signs, denormals and huge values must come back as they were."""
    u, w = torch.full((5, 9), value), shares(5)
    assert torch.equal(weighted_rules()[name](u, w).vector.abs(), u[0].abs())
    u[1], u[3] = -value, 0.0
    found = weighted_rules()[name](u, w).vector
    assert torch.isfinite(found).all() and (found.abs() <= u.abs().max()).all()


@pytest.mark.parametrize("name", weighted_rules())
def test_weighted_rules_refuse_what_is_not_finite_and_leave_the_input_alone(name: str) -> None:
    u, w = block(7, 3000), shares(7)
    before = u.clone()
    weighted_rules()[name](u, w)
    assert torch.equal(u, before)
    for value in (float("nan"), float("inf"), float("-inf")):
        u[3, 1234] = value
        with pytest.raises(ValueError, match="row 3 holds NaN or Inf"):
            weighted_rules()[name](u, w)


def test_whoever_has_more_than_half_of_the_weight_decides_the_median() -> None:
    u = block(5)
    found = aggregators.coordinate_median(u, torch.tensor([1.0, 1.0, 9.0, 1.0, 1.0]))
    assert torch.equal(found.vector, u[2]) and found.weights.tolist() == [0, 0, 1, 0, 0]
    alone = torch.eye(5, dtype=torch.float64)[2]
    for rule in weighted_rules().values():
        assert torch.equal(rule(u, alone).vector, u[2]), "the largest weight of all does not touch the value either"
    capped = aggregators.cap_weights(torch.tensor([1.0, 1.0, 9.0, 1.0, 1.0]), 1 / 3)
    assert not torch.equal(aggregators.coordinate_median(u, capped).vector, u[2])


def test_clients_without_weight_are_not_seen() -> None:
    u, w = block(6, 50), torch.tensor([0.0, 2.0, 0.0, 3.0, 2.5, 0.0], dtype=torch.float64)
    some = w > 0
    for rule in weighted_rules().values():
        alone = rule(u[some], w[some])
        found = rule(u, w)
        close(found.vector, alone.vector.numpy(), 1e-6)
        close(found.weights[some], alone.weights.numpy(), 1e-6)
        assert not found.weights[~some].any()


def test_weights_of_mixed_rows_come_back_to_the_clients() -> None:
    u, w = block(9, 80), shares(5)
    mixing = aggregators.bucketing(u, 2, torch.Generator().manual_seed(1))
    mixed = (mixing @ u.double()).float()
    for rule in (aggregators.coordinate_median, lambda u, w, **m: aggregators.trimmed_mean(u, 1, weights=w, **m)):
        close(rule(u, w, mixing=mixing).vector, rule(mixed, w).vector.numpy())
        assert float(rule(u, w, mixing=mixing).weights.sum()) == pytest.approx(1)


@PROPERTY
@given(seed=SEEDS, n=st.integers(1, 30), cap=st.floats(0.01, 1.0))
def test_capped_weights(seed: int, n: int, cap: float) -> None:
    w = shares(n, seed) ** 3
    found = aggregators.cap_weights(w, cap)
    assert float(found.sum()) == pytest.approx(1) and found.dtype == torch.float64
    if cap * n <= 1:
        assert found.tolist() == [1 / n] * n
        return
    assert float(found.max()) <= cap + 1e-12
    free = found < cap - 1e-12
    ratios = (found / w)[free]
    if len(ratios):
        assert float(ratios.max() / ratios.min()) == pytest.approx(1), "those below the cap keep their proportions"
        assert (found[~free] <= w[~free] * float(ratios[0]) + 1e-9).all(), "nobody is capped who need not be"


def test_capping_by_hand() -> None:
    assert aggregators.cap_weights(torch.tensor([6.0, 2.0, 2.0]), 0.5).tolist() == [0.5, 0.25, 0.25]
    assert aggregators.cap_weights(torch.tensor([7.0, 2.0, 1.0, 0.0]), 0.4).tolist() == pytest.approx(
        [0.4, 0.4, 0.2, 0]
    )
    assert aggregators.cap_weights(torch.tensor([7.0, 2.0, 0.0]), 0.1).tolist() == [0.5, 0.5, 0]
    assert aggregators.cap_weights(torch.tensor([3.0]), 0.2).tolist() == [1]
    for n in range(1, 200):
        just = aggregators.cap_weights(torch.arange(1.0, n + 1), min(1.0, 1 / n * (1 + 2e-16)))
        assert float(just.sum()) == pytest.approx(1)


# ---- mean around the median ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "f"), [(1, 0), (2, 0), (3, 1), (6, 2), (10, 0), (11, 3), (20, 9)])
def test_mean_around_the_median(n: int, f: int) -> None:
    u = block(n, 203)
    x = u.double().numpy()
    expected, counts = np.empty(203), np.zeros(n)
    for k in range(203):
        centre = np.median(x[:, k])
        nearest = sorted(range(n), key=lambda i, k=k, centre=centre: (abs(x[i, k] - centre), x[i, k]))[: n - f]
        expected[k] = np.mean([x[i, k] for i in nearest])
        counts[nearest] += 1
    found = aggregators.meamed(u, f)
    close(found.vector, expected, 1e-6)
    close(found.weights, counts / counts.sum(), 5e-3)  # of an even number the middle is rounded: ties of two


# ---- robust learning rate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0, 1, 3, 4, 9])
def test_robust_learning_rate(threshold: int) -> None:
    u, w = block(9, 203, shift=0.3), shares(9)
    u[2, :50] = 0
    x, p = u.double().numpy(), (w / w.sum()).numpy()
    expected = np.empty(203)
    for k in range(203):
        votes = sum(1 if value > 0 else -1 if value < 0 else 0 for value in x[:, k])
        step = sum(weight * value for weight, value in zip(p, x[:, k], strict=True))
        expected[k] = step if abs(votes) >= threshold else -step
    found = aggregators.robust_learning_rate(u, threshold, w)
    close(found.vector, expected)
    close(found.weights, p, 1e-12)
    mean = aggregators.mean(u, w).vector
    assert torch.equal(found.vector, mean) == (threshold == 0)
    torch.testing.assert_close(found.vector.abs(), mean.abs())


@PROPERTY
@given(seed=SEEDS, scale=st.sampled_from([-3.0, 1e-3, 1e4]))
def test_robust_learning_rate_scales_with_the_updates(seed: int, scale: float) -> None:
    u = block(9, 40, seed, shift=0.2)
    expected = aggregators.robust_learning_rate(u, 4).vector * scale
    torch.testing.assert_close(
        aggregators.robust_learning_rate(u * scale, 4).vector, expected, rtol=1e-4, atol=1e-6 * abs(scale)
    )


# ---- adaptive clipping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "f"), [(1, 0), (3, 1), (10, 0), (10, 1), (10, 4), (11, 3), (20, 9)])
def test_adaptive_clipping(n: int, f: int) -> None:
    u = block(n) * torch.arange(1, n + 1)[:, None]
    lengths = [float(np.linalg.norm(row)) for row in u.double().numpy()]
    longest = sorted(range(n), key=lambda i: -lengths[i])
    k = int(2 * f * (n - f) / n)
    factors = np.ones(n)
    for i in longest[:k]:
        factors[i] = lengths[longest[k]] / lengths[i]
    close(aggregators.adaptive_clipping(u, f), factors)
    clipped = aggregators.adaptive_clipping(u, f).float()[:, None] * u
    assert float(clipped.norm(dim=1).max()) == pytest.approx(lengths[longest[k]], rel=1e-5)


def test_adaptive_clipping_of_odd_blocks() -> None:
    assert aggregators.adaptive_clipping(torch.zeros(5, 3), 2).tolist() == [1] * 5
    assert aggregators.adaptive_clipping(torch.ones(5, 3), 2).tolist() == [1] * 5
    huge = torch.cat([block(4), torch.full((1, 37), 1e30)])
    assert 0 < float(aggregators.adaptive_clipping(huge, 1)[4]) < 1e-28
    mostly_zero = torch.cat([torch.zeros(4, 37), block(1)])
    assert aggregators.adaptive_clipping(mostly_zero, 1).tolist() == [1, 1, 1, 1, 0]


@PROPERTY
@given(seed=SEEDS, scale=st.sampled_from([-3.0, 1e-3, 1e4]))
def test_adaptive_clipping_goes_by_proportions(seed: int, scale: float) -> None:
    u = block(9, 40, seed) * shares(9, seed).float()[:, None]
    close(aggregators.adaptive_clipping(u * scale, 3), aggregators.adaptive_clipping(u, 3).numpy())
    assert torch.equal(aggregators.adaptive_clipping(u.flip(0), 3), aggregators.adaptive_clipping(u, 3).flip(0))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_norms(scale: float) -> None:
    u = block(5, 1000) * scale
    u[2] = 0
    u[3] = 1e-40
    close(aggregators.norms(u), np.linalg.norm(u.double().numpy(), axis=1))
    assert float(aggregators.norms(u)[3]) == pytest.approx(1e-40 * 1000**0.5, rel=1e-3)


# ---- minimum diameter ------------------------------------------------------------------------------------------


def ref_mda(x: np.ndarray, f: int) -> list[int]:
    """Every subset; of those with the same diameter, the one with the least sum of squared distances."""
    n = len(x)
    distances = [[float(((a - b) ** 2).sum()) for b in x] for a in x]

    def spread(rows: tuple[int, ...]) -> tuple[float, float]:
        pairs = [distances[i][j] for i, j in combinations(rows, 2)]
        return max(pairs, default=0.0), sum(pairs)

    return list(min(combinations(range(n), n - f), key=spread))


@pytest.mark.parametrize(("n", "f"), [(1, 0), (3, 1), (5, 2), (8, 3), (11, 2), (11, 5), (14, 4)])
def test_minimum_diameter(n: int, f: int) -> None:
    for seed in range(6):
        u = block(n, 8, seed)
        u[: f // 2] *= 5
        x = u.double().numpy()
        found = aggregators.mda(u, f)
        chosen = ref_mda(x, f)
        assert found.weights.nonzero().flatten().tolist() == chosen
        close(found.vector, x[chosen].mean(axis=0))


def test_minimum_diameter_of_many_clients() -> None:
    """n over f would be 2e15 subsets."""
    u = block(100, 50)
    u[::9] += 3 * torch.randn(12, 50, generator=torch.Generator().manual_seed(1))
    found = aggregators.mda(u, 12)
    assert not found.weights[::9].any() and int((found.weights > 0).sum()) == 88


def test_minimum_diameter_of_equal_rows() -> None:
    found = aggregators.mda(torch.ones(5, 3), 2)
    assert found.vector.tolist() == [1, 1, 1] and int((found.weights > 0).sum()) == 3


# ---- covariance-bound agnostic filter --------------------------------------------------------------------------


def ref_caf(x: np.ndarray, f: int) -> np.ndarray:
    n = len(x)
    c, best, least = np.ones(n), x.mean(axis=0), np.inf
    while c.sum() > n - 2 * f:
        mean = sum(ci * xi for ci, xi in zip(c, x, strict=True)) / c.sum()
        covariance = sum(ci * np.outer(xi - mean, xi - mean) for ci, xi in zip(c, x, strict=True)) / c.sum()
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < least:
            best, least = mean, values[-1]
        tau = np.array([((xi - mean) @ vectors[:, -1]) ** 2 for xi in x])
        c = c * (1 - tau / tau[c > 0].max())
    return best


@pytest.mark.parametrize(("n", "f"), [(1, 0), (3, 1), (8, 0), (8, 3), (11, 2), (20, 8)])
@pytest.mark.parametrize("size", [1.0, 20.0, 1e6])
def test_covariance_filter(n: int, f: int, size: float) -> None:
    for seed in range(4):
        u = block(n, 16, seed)
        u[:f] *= size
        found = aggregators.caf(u, f)
        close(found.vector, ref_caf(u.double().numpy(), f), 1e-4)
        close(aggregators.combine(u, found.weights), found.vector.double().numpy())
        assert float(found.weights.sum()) == pytest.approx(1) and (found.weights >= 0).all()


def test_the_covariance_filter_needs_no_attackers() -> None:
    """byzfl's answers None for f = 0, and where all are equal."""
    u = block(6)
    close(aggregators.caf(u, 0).vector, u.double().numpy().mean(axis=0))
    torch.testing.assert_close(aggregators.caf(u[:1].repeat(5, 1), 2).vector, u[0])


def test_a_row_without_weight_does_not_stop_the_covariance_filter() -> None:
    """A huge row loses its weight first. Were τ still measured by it, no other would ever lose any."""
    u = block(11, 30)
    u[0], u[1:3] = 1e8, u[1:3] + 5
    found = aggregators.caf(u, 3)
    assert float(found.weights[0]) == 0 and float(found.weights[1:3].sum()) < 0.02
