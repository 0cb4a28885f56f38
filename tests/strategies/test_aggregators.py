"""Every kernel against its definition, written out naively in double precision; and what must hold for any input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate
from thistle.strategies.aggregators.network import apply, network

F = 2
N = 11  # = 4F + 3, the least that Bulyan takes

# name → rule on a block, with f = F attackers in mind
RULES: dict[str, Callable[[Tensor], Aggregate]] = {
    "mean": aggregators.mean,
    "geometric_median": aggregators.geometric_median,
    "coordinate_median": aggregators.coordinate_median,
    "trimmed_mean": lambda u: aggregators.trimmed_mean(u, F),
    "meamed": lambda u: aggregators.meamed(u, F),
    "mda": lambda u: aggregators.mda(u, F),
    "caf": lambda u: aggregators.caf(u, F),
    "clipped_mean": aggregators.clipped_mean,
    "robust_learning_rate": lambda u: aggregators.robust_learning_rate(u, 4),
    "krum": lambda u: aggregators.krum(u, F),
    "multi_krum": lambda u: aggregators.multi_krum(u, F, 4),
    "bulyan": lambda u: aggregators.bulyan(u, F),
    "centered_clipping": lambda u: aggregators.centered_clipping(u, 1.0, 3),
    "fltrust": lambda u: aggregators.fltrust(u, torch.ones(u.shape[1])),
}
OUTSIDE = ("centered_clipping", "fltrust", "clipped_mean", "robust_learning_rate")
HULL = [name for name in RULES if name not in OUTSIDE]  # convex, coordinate by coordinate
MIXABLE: dict[str, Callable[..., Aggregate]] = {
    "mean": aggregators.mean,
    "geometric_median": aggregators.geometric_median,
    "coordinate_median": aggregators.coordinate_median,
    "trimmed_mean": lambda u, mixing=None: aggregators.trimmed_mean(u, 1, mixing=mixing),
    "meamed": lambda u, mixing=None: aggregators.meamed(u, 1, mixing=mixing),
    "mda": lambda u, mixing=None: aggregators.mda(u, 1, mixing=mixing),
    "caf": lambda u, mixing=None: aggregators.caf(u, 1, mixing=mixing),
    "clipped_mean": lambda u, mixing=None: aggregators.clipped_mean(u, bound=8.0, mixing=mixing),
    "robust_learning_rate": lambda u, mixing=None: aggregators.robust_learning_rate(u, 3, mixing=mixing),
    "krum": lambda u, mixing=None: aggregators.krum(u, 1, mixing=mixing),
    "multi_krum": lambda u, mixing=None: aggregators.multi_krum(u, 1, 2, mixing=mixing),
    "bulyan": lambda u, mixing=None: aggregators.bulyan(u, 1, mixing=mixing),
    "centered_clipping": lambda u, mixing=None: aggregators.centered_clipping(u, 1.0, 2, mixing=mixing),
}


def block(n: int = N, d: int = 37, seed: int = 0, shift: float = 0.5) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + shift


def close(actual: Tensor, expected: np.ndarray, rtol: float = 1e-5) -> None:
    scale = np.abs(expected).max() + 1e-30
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=rtol, atol=rtol * scale)


# ---- references ------------------------------------------------------------------------------------------------


def ref_distances(x: np.ndarray) -> np.ndarray:
    return np.array([[((a - b) ** 2).sum() for b in x] for a in x])


def ref_weiszfeld(x: np.ndarray, alpha: np.ndarray, steps: int, nu: float, tolerance: float) -> np.ndarray:
    def objective(z: np.ndarray) -> float:
        return float(sum(a * np.linalg.norm(z - row) for a, row in zip(alpha, x, strict=True)))

    z = alpha @ x
    for _ in range(steps):
        beta = np.array([a / max(nu, np.linalg.norm(z - row)) for a, row in zip(alpha, x, strict=True)])
        before, z = objective(z), (beta / beta.sum()) @ x
        if abs(before - objective(z)) <= tolerance * before:
            break
    return z


def ref_minimum(x: np.ndarray) -> np.ndarray:
    """The geometric median by Newton's method, steps halved until the sum of distances falls."""
    z = np.median(x, axis=0)
    for _ in range(200):
        away = z - x
        r = np.linalg.norm(away, axis=1)
        gradient = (away / r[:, None]).sum(axis=0)
        hessian = sum(np.eye(len(z)) / d - np.outer(a, a) / d**3 for a, d in zip(away, r, strict=True))
        step = np.linalg.solve(hessian, gradient)
        while np.linalg.norm(z - step - x, axis=1).sum() > r.sum() and np.abs(step).max() > 1e-15:
            step = step / 2
        z = z - step
    assert np.linalg.norm(gradient) < 1e-9
    return z


def ref_krum_order(x: np.ndarray, f: int) -> list[int]:
    scores = [sum(sorted(((x[i] - x[j]) ** 2).sum() for j in range(len(x)) if j != i)[: len(x) - f - 2])
              for i in range(len(x))]  # fmt: skip
    return sorted(range(len(x)), key=lambda i: (scores[i], i))


def ref_bulyan(x: np.ndarray, f: int) -> tuple[np.ndarray, np.ndarray]:
    n, left = len(x), list(range(len(x)))
    chosen: list[int] = []
    while len(chosen) < n - 2 * f:
        keep = max(1, len(left) - f - 2)
        scores = {i: sum(sorted(((x[i] - x[j]) ** 2).sum() for j in left if j != i)[:keep]) for i in left}
        best = min(left, key=lambda i: (scores[i], i))
        chosen.append(best)
        left.remove(best)
    beta, out, counts = n - 4 * f, np.empty(x.shape[1]), np.zeros(n)
    for k in range(x.shape[1]):
        centre = np.median(x[chosen, k])
        nearest = sorted(chosen, key=lambda i: (abs(x[i, k] - centre), x[i, k]))[:beta]
        out[k] = x[nearest, k].mean()
        counts[nearest] += 1
    return out, counts / counts.sum()


def ref_foolsgold(history: np.ndarray) -> np.ndarray:
    n = len(history)
    cosine = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            length = np.linalg.norm(history[i]) * np.linalg.norm(history[j])
            cosine[i, j] = history[i] @ history[j] / length if i != j and length > 0 else 0.0
    v = cosine.max(axis=1)
    for i in range(n):
        for j in range(n):
            if v[i] < v[j]:
                cosine[i, j] *= v[i] / v[j]
    alpha = np.clip(1 - cosine.max(axis=1), 0, 1)
    alpha = np.minimum(alpha / alpha.max(), 0.99)
    with np.errstate(divide="ignore"):
        alpha = np.clip(np.log(alpha / (1 - alpha)) + 0.5, 0, 1)
    return alpha / alpha.sum()


# ---- Gram matrix -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d", "chunk"), [(1, 5, None), (2, 1, None), (7, 100, 9), (20, 5000, None), (7, 64, 64)])
def test_gram_and_distances(n: int, d: int, chunk: int | None) -> None:
    u = block(n, d)
    x = u.double().numpy()
    plain = aggregators.gram(u, chunk, centred=False)
    assert plain.dtype == torch.float64
    close(plain, x @ x.T)
    close(aggregators.squared_distances(aggregators.gram(u, chunk)), ref_distances(x))
    extra = block(1, d, seed=5)[0]
    close(
        aggregators.squared_distances(aggregators.gram(u, chunk, extra=extra)),
        ref_distances(np.vstack([x, extra.numpy()])),
    )


def test_distances_survive_cancellation() -> None:
    """1e5 weights around 1000, a true squared distance of 0.2: float32 products alone would be off by thousands."""
    u = 1000 + block(1, 100_000) + 0.001 * block(6, 100_000, seed=1, shift=0.0)
    expected = ref_distances(u.double().numpy())
    np.testing.assert_allclose(expected[0, 1:], 0.2, rtol=0.02)
    close(aggregators.squared_distances(aggregators.gram(u)), expected)


@pytest.mark.parametrize("size", [1e6, 1e12, 1e30])
def test_distances_of_the_bulk_survive_huge_rows(size: float) -> None:
    """Outliers must not blind the others: a centre at the mean would."""
    for shift in (0.0, 300.0):
        u = block(N, 500, shift=shift)
        expected = ref_distances(u[F:].double().numpy())
        u[0], u[1] = size, -0.3 * size
        close(aggregators.squared_distances(aggregators.gram(u))[F:, F:], expected, rtol=1e-4)


def test_inner_products() -> None:
    u, r = block(9, 5000), block(1, 5000, seed=3)[0]
    u[3] = 0
    for scale in (1.0, 1e30):
        v = u * scale
        dots, squares = aggregators.inner_products(v, r)
        close(dots, v.double().numpy() @ r.double().numpy())
        close(squares, (v.double().numpy() ** 2).sum(axis=1))


# ---- each rule against its definition --------------------------------------------------------------------------


def test_mean() -> None:
    u, w = block(), torch.arange(N, dtype=torch.float32)
    close(aggregators.mean(u).vector, u.double().numpy().mean(axis=0))
    result = aggregators.mean(u, w)
    close(result.vector, np.average(u.double().numpy(), axis=0, weights=w.numpy()))
    close(result.weights, w.numpy() / w.sum().item())


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 50])
@pytest.mark.parametrize("weighted", [False, True])
def test_geometric_median_follows_weiszfeld(steps: int, weighted: bool) -> None:
    u = block(N, 300)
    u[:3] *= 20
    w = torch.arange(1, N + 1, dtype=torch.float64) if weighted else None
    alpha = np.full(N, 1 / N) if w is None else w.numpy() / w.numpy().sum()
    result = aggregators.geometric_median(u, w, steps)
    close(result.vector, ref_weiszfeld(u.double().numpy(), alpha, steps, 1e-6, 1e-6))
    close(aggregators.combine(u, result.weights), result.vector.double().numpy())


def test_geometric_median_converges_to_the_minimum() -> None:
    for seed in range(4):
        u = block(9, 4, seed)
        u[:4] += 10
        x = u.double().numpy()
        result = aggregators.geometric_median(u, steps=1000, tolerance=0.0)
        np.testing.assert_allclose(result.vector.numpy(), ref_minimum(x), atol=1e-4)


def test_geometric_median_of_byzfls_example() -> None:
    """byzfl's documentation answers 3.79, 4.79, 5.79: three steps from zero. The middle point is the median."""
    u = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    torch.testing.assert_close(aggregators.geometric_median(u).vector, torch.tensor([4.0, 5.0, 6.0]))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 20, 33])
def test_coordinate_median(n: int) -> None:
    u = block(n, 203)
    x = u.double().numpy()
    result = aggregators.coordinate_median(u)
    close(result.vector, np.median(x, axis=0), rtol=1e-6)
    order = np.argsort(x, axis=0)
    counts = sum((order[k][None] == np.arange(n)[:, None]).sum(axis=1) for k in {(n - 1) // 2, n // 2})
    close(result.weights, counts / counts.sum(), rtol=1e-9)


@pytest.mark.parametrize(("n", "f"), [(1, 0), (2, 0), (3, 1), (5, 1), (10, 4), (11, 2), (20, 1), (33, 12)])
def test_trimmed_mean(n: int, f: int) -> None:
    u = block(n, 203)
    x = u.double().numpy()
    result = aggregators.trimmed_mean(u, f)
    close(result.vector, np.sort(x, axis=0)[f : n - f].mean(axis=0), rtol=1e-6)
    ranks = x.argsort(axis=0).argsort(axis=0)
    counts = ((ranks >= f) & (ranks < n - f)).sum(axis=1)
    close(result.weights, counts / counts.sum(), rtol=1e-9)
    assert torch.equal(aggregators.trimmed_mean(u, beta=(f + 0.1) / n).vector, result.vector)


@pytest.mark.parametrize(("n", "low", "high"), [(1, 0, 0), (6, 2, 3), (9, 1, 7), (17, 0, 16), (10, 9, 9)])
def test_network_orders_every_pattern_of_zeros_and_ones(n: int, low: int, high: int) -> None:
    """The 0-1 principle: what sorts all patterns of zeros and ones sorts everything."""
    patterns = torch.tensor([[(k >> i) & 1 for k in range(2**n)] for i in range(n)], dtype=torch.float32)
    expected = patterns.sort(dim=0).values
    rows = apply(network(n, low, high), patterns.clone())
    assert torch.equal(rows[low], expected[low]) and torch.equal(rows[high], expected[high])
    assert torch.equal(torch.stack(rows[low : high + 1]).sum(0), expected[low : high + 1].sum(0))
    sorted_rows = apply(network(n, low, high, inside_sorted=True), patterns.clone())
    assert torch.equal(torch.stack(sorted_rows[low : high + 1]), expected[low : high + 1])


@pytest.mark.parametrize(("n", "f"), [(3, 0), (5, 1), (11, 2), (12, 4), (20, 6)])
def test_krum(n: int, f: int) -> None:
    for seed in range(5):
        u = block(n, 64, seed)
        order = ref_krum_order(u.double().numpy(), f)
        single = aggregators.krum(u, f)
        assert torch.equal(single.vector, u[order[0]])
        assert single.weights.nonzero().flatten().tolist() == order[:1]
        for m in (1, 2, n - f):
            several = aggregators.multi_krum(u, f, m)
            assert sorted(several.weights.nonzero().flatten().tolist()) == sorted(order[:m])
            close(several.vector, u.double().numpy()[order[:m]].mean(axis=0))


@pytest.mark.parametrize(("n", "f"), [(3, 0), (7, 1), (8, 1), (11, 2), (15, 2), (23, 5)])
def test_bulyan(n: int, f: int) -> None:
    for seed in range(5):
        u = block(n, 64, seed)
        vector, weights = ref_bulyan(u.double().numpy(), f)
        result = aggregators.bulyan(u, f)
        close(result.vector, vector)
        close(result.weights, weights, rtol=1e-9)


@pytest.mark.parametrize("with_start", [False, True])
def test_centered_clipping(with_start: bool) -> None:
    u = block(N, 50)
    u[:2] *= 30
    start = block(1, 50, seed=9)[0] if with_start else None
    for tau, steps in ((0.5, 1), (5.0, 4), (1e4, 1)):
        v = np.zeros(50) if start is None else start.double().numpy()
        for _ in range(steps):
            moves = u.double().numpy() - v
            v = v + np.mean([m * min(1, tau / np.linalg.norm(m)) for m in moves], axis=0)
        result = aggregators.centered_clipping(u, tau, steps, start)
        close(result.vector, v)
        assert 0 < float(result.weights.sum()) <= 1 + 1e-12


def test_clip() -> None:
    v = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(aggregators.clip(v, 1.0), torch.tensor([0.6, 0.8]))
    assert torch.equal(aggregators.clip(v, 5.0), v)
    assert torch.equal(aggregators.clip(torch.zeros(2), 0.0), torch.zeros(2))
    torch.testing.assert_close(aggregators.clip(v * 1e30, 1.0), torch.tensor([0.6, 0.8]))


def test_fltrust() -> None:
    u, r = block(N, 50, shift=0.1), block(1, 50, seed=9, shift=0.1)[0]
    u[4] = 0
    x, y = u.double().numpy(), r.double().numpy()
    norms = np.linalg.norm(x, axis=1)
    cosines = np.divide(x @ y, norms * np.linalg.norm(y), out=np.zeros(N), where=norms > 0)
    trust = np.maximum(0, cosines)
    scaled = np.divide(np.linalg.norm(y), norms, out=np.zeros(N), where=norms > 0)[:, None] * x
    result = aggregators.fltrust(u, r)
    close(result.vector, trust @ scaled / trust.sum())
    close(result.weights, trust / trust.sum())
    nobody = aggregators.fltrust(-r[None].repeat(3, 1), r)
    assert not nobody.vector.any() and not nobody.weights.any()


def test_foolsgold() -> None:
    history = block(8, 40, shift=0.05)
    history[1] = history[0] * 1.5 + 0.01 * history[4]  # two sybils
    history[7] = 0
    weights = aggregators.foolsgold(aggregators.gram(history, centred=False))
    close(weights, ref_foolsgold(history.double().numpy()), rtol=1e-4)
    assert float(weights[:2].sum()) < 0.05
    alike = history[:1].repeat(5, 1) * torch.arange(1, 6)[:, None]
    assert not aggregators.foolsgold(aggregators.gram(alike, centred=False)).any()


# ---- pre-steps -------------------------------------------------------------------------------------------------


def test_nearest_neighbour_mixing() -> None:
    u = block()
    x = u.double().numpy()
    distances = ref_distances(x)
    mixing = aggregators.nearest_neighbour_mixing(u, F)
    for i in range(N):
        nearest = np.argsort(distances[i], kind="stable")[: N - F]
        close(mixing[i] @ u.double(), x[nearest].mean(axis=0))


def test_bucketing() -> None:
    u = block()
    mixing = aggregators.bucketing(u, 3, torch.Generator().manual_seed(1))
    assert torch.equal(mixing, aggregators.bucketing(u, 3, torch.Generator().manual_seed(1)))
    assert (mixing > 0).sum(dim=1).tolist() == [3, 3, 3, 2]
    assert (mixing > 0).sum(dim=0).tolist() == [1] * N
    torch.testing.assert_close(mixing.sum(dim=1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("name", MIXABLE)
def test_a_rule_after_a_pre_step_is_the_rule_on_the_mixed_block(name: str) -> None:
    u = block(21, 300)
    u[0] *= 50
    steps = {
        "nnm": aggregators.nearest_neighbour_mixing(u, 4),
        "buckets": aggregators.bucketing(u, 3, torch.Generator().manual_seed(1)),
    }
    for mixing in steps.values():
        direct = MIXABLE[name]((mixing @ u.double()).float())
        through = MIXABLE[name](u, mixing=mixing)
        close(through.vector, direct.vector.double().numpy())
        assert through.weights.shape == (21,)
        if name not in (
            "coordinate_median",
            "trimmed_mean",
            "meamed",
            "bulyan",
        ):  # others: a share of coordinates, ties may differ
            close(through.weights, (mixing.T @ direct.weights).numpy(), rtol=1e-4)
        assert float(through.weights.sum()) == pytest.approx(float(direct.weights.sum()), abs=1e-4)


def test_a_gram_matrix_at_hand_changes_nothing() -> None:
    u = block()
    products = aggregators.gram(u)
    assert torch.equal(
        aggregators.geometric_median(u).vector, aggregators.geometric_median(u, products=products).vector
    )
    for rule in (aggregators.krum, aggregators.multi_krum, aggregators.bulyan):
        assert torch.equal(rule(u, F).vector, rule(u, F, products=products).vector)
    assert torch.equal(
        aggregators.nearest_neighbour_mixing(u, F), aggregators.nearest_neighbour_mixing(u, F, products=products)
    )


# ---- what must hold for any input ------------------------------------------------------------------------------

SEEDS = st.integers(0, 2**31)
ANY_RULE = pytest.mark.parametrize("name", RULES)
PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)


@ANY_RULE
@PROPERTY
@given(seed=SEEDS, n=st.integers(15, 25), d=st.integers(1, 60))
def test_order_of_clients_does_not_matter(name: str, seed: int, n: int, d: int) -> None:
    u = block(n, d, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    rules = RULES | {"bulyan": lambda u: aggregators.bulyan(u, 3)}  # with f < 3 mutual neighbours tie: order decides
    first, second = rules[name](u), rules[name](u[order])
    close(second.vector, first.vector.double().numpy(), rtol=1e-4)
    close(second.weights, first.weights[order].numpy(), rtol=1e-4)


@pytest.mark.parametrize("name", HULL)
@PROPERTY
@given(seed=SEEDS, scale=st.sampled_from([-3.0, 1e-3, 2.0, 1e4]), shift=st.sampled_from([-50.0, 0.0, 3.0]))
def test_moves_and_scales_with_the_updates(name: str, seed: int, scale: float, shift: float) -> None:
    u = block(N, 40, seed, shift=0.0)
    first, second = RULES[name](u), RULES[name](u * scale + shift)
    np.testing.assert_allclose(
        second.vector.numpy(), (first.vector * scale + shift).numpy(), atol=1e-4 * (abs(scale) + abs(shift))
    )


@pytest.mark.parametrize("name", HULL)
@PROPERTY
@given(seed=SEEDS, n=st.integers(N, 30), d=st.integers(1, 60), size=st.sampled_from([1e-30, 1e-10, 1.0, 1e6, 1e30]))
def test_stays_inside_the_hull_and_weights_sum_to_one(name: str, seed: int, n: int, d: int, size: float) -> None:
    u = block(n, d, seed) * size
    u[seed % n] = 0
    result = RULES[name](u)
    slack = 1e-6 * u.abs().max()
    assert (result.vector >= u.min(dim=0).values - slack).all() and (result.vector <= u.max(dim=0).values + slack).all()
    assert (result.weights >= 0).all() and float(result.weights.sum()) == pytest.approx(1.0, abs=1e-9)
    assert result.vector.dtype == torch.float32 and result.weights.dtype == torch.float64


@pytest.mark.parametrize(
    "name", ["coordinate_median", "trimmed_mean", "meamed", "mda", "caf", "krum", "multi_krum", "bulyan", "converged"]
)
@PROPERTY
@given(seed=SEEDS, size=st.sampled_from([1e3, 1e6, 1e15, 1e30]), sign=st.sampled_from([1.0, -1.0]))
def test_f_huge_updates_are_harmless(name: str, seed: int, size: float, sign: float) -> None:
    u = block(N, 200, seed)
    u[:F] = torch.randn(F, 200, generator=torch.Generator().manual_seed(seed)) * size
    u[0], u[1] = size, sign * size
    rules = RULES | {"converged": lambda u: aggregators.geometric_median(u, steps=1000, tolerance=0.0)}
    result = rules[name](u)
    honest = u[F:]
    assert (result.vector - honest.mean(dim=0)).norm() < 2 * (honest - honest.mean(dim=0)).norm(dim=1).max()
    if name in ("krum", "multi_krum", "mda", "caf", "converged"):
        assert float(result.weights[:F].sum()) < 0.01


@ANY_RULE
@pytest.mark.parametrize("kind", ["zeros", "same", "one huge", "all huge", "tiny", "half zeros"])
def test_odd_blocks_break_nothing(name: str, kind: str) -> None:
    u = {
        "zeros": torch.zeros(N, 30),
        "same": block(1, 30).repeat(N, 1),
        "one huge": torch.cat([block(N - 1, 30), torch.full((1, 30), 1e30)]),
        "all huge": block(N, 30) * 1e30,
        "tiny": block(N, 30) * 1e-35,
        "half zeros": block(N, 30) * (torch.arange(N) % 2)[:, None],
    }[kind]
    before = u.clone()
    result = RULES[name](u)
    assert torch.isfinite(result.vector).all() and torch.isfinite(result.weights).all()
    assert torch.equal(u, before), "kernels do not write into their input"
    assert torch.equal(RULES[name](u).vector, result.vector)
    if kind == "same" and name in HULL:
        close(result.vector, u[0].double().numpy(), rtol=1e-6)


@ANY_RULE
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_refused(name: str, value: float) -> None:
    u = block(N, 3000)
    u[3, 1234] = value
    with pytest.raises(ValueError, match="row 3 holds NaN or Inf"):
        RULES[name](u)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u: aggregators.krum(u, 5), r"n ≥ 2f \+ 3; got f=5, n=11"),
        (lambda u: aggregators.multi_krum(u, 2, 10), "m=10, f=2, n=11"),
        (lambda u: aggregators.bulyan(u, 3), r"n ≥ 4f \+ 3; got f=3, n=11"),
        (lambda u: aggregators.trimmed_mean(u, 6), "got f=6, n=11"),
        (lambda u: aggregators.trimmed_mean(u, -1), "got f=-1, n=11"),
        (lambda u: aggregators.trimmed_mean(u, beta=0.5), "beta=0.5"),
        (aggregators.trimmed_mean, "beta=None"),
        (lambda u: aggregators.nearest_neighbour_mixing(u, 6), "got f=6, n=11"),
        (lambda u: aggregators.meamed(u, 6), "MeaMed needs 0 ≤ 2f < n; got f=6, n=11"),
        (lambda u: aggregators.caf(u, 6), "CAF needs 0 ≤ 2f < n; got f=6, n=11"),
        (lambda u: aggregators.mda(u, 6), "MDA needs 0 ≤ 2f < n; got f=6, n=11"),
        (
            lambda u: aggregators.mda(u.repeat(4, 1), 17),
            r"MDA needs f ≤ 16, because its search has 2\^f ends; got f=17",
        ),
        (lambda u: aggregators.adaptive_clipping(u, 6), "got f=6, n=11"),
        (lambda u: aggregators.clipped_mean(u, bound=0.0), "a bound above 0; got 0.0"),
        (lambda u: aggregators.robust_learning_rate(u, 12), "got threshold=12, n=11"),
        (lambda u: aggregators.cap_weights(torch.ones(N), 0.0), "got 0.0"),
        (lambda u: aggregators.coordinate_median(u, torch.ones(3)), "one value per row"),
        (lambda u: aggregators.bucketing(u, 12, torch.Generator()), "size=12, n=11"),
        (lambda u: aggregators.centered_clipping(u, 0.0), "tau=0.0"),
        (lambda u: aggregators.mean(u, torch.zeros(N)), "sum above 0"),
        (lambda u: aggregators.mean(u, torch.full((N,), float("nan"))), "finite"),
        (lambda u: aggregators.mean(u, torch.ones(3)), "one value per row"),
        (lambda u: aggregators.mean(u.half()), "float32"),
        (lambda u: aggregators.mean(u[0]), "shape"),
        (lambda u: aggregators.mean(u, mixing=torch.ones(2, 3, dtype=torch.float64)), "mixing must be"),
        (lambda u: aggregators.fltrust(u, torch.ones(3)), "37 values"),
        (lambda u: aggregators.krum(u, 2, mixing=aggregators.bucketing(u, 2, torch.Generator())), "n=6"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(block())


def test_equal_scores_go_to_the_first_row() -> None:
    u = torch.tensor([[5.0], [1.0], [1.0], [1.0], [1.0], [1.0], [-3.0]])
    assert aggregators.krum(u, 1).weights.tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert aggregators.multi_krum(u, 1, 2).weights.tolist() == [0, 0.5, 0.5, 0, 0, 0, 0]


PLAIN: dict[str, Callable[[Any], Any]] = {
    "mean": aggregators.mean,
    "geometric_median": aggregators.geometric_median,
    "krum": lambda u: aggregators.krum(u, f=2),
    "multi_krum": lambda u: aggregators.multi_krum(u, f=2),
    "bulyan": lambda u: aggregators.bulyan(u, f=2),
    "coordinate_median": aggregators.coordinate_median,
    "trimmed_mean": lambda u: aggregators.trimmed_mean(u, f=2),
    "meamed": lambda u: aggregators.meamed(u, f=2),
    "mda": lambda u: aggregators.mda(u, f=2),
    "caf": lambda u: aggregators.caf(u, f=2),
    "clipped_mean": lambda u: aggregators.clipped_mean(u, bound=1e3),
    "robust_learning_rate": lambda u: aggregators.robust_learning_rate(u, threshold=0),
    "centered_clipping": lambda u: aggregators.centered_clipping(u, tau=1.0),
    "fltrust": lambda u: aggregators.fltrust(u, u[0]),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_updates_give_numpy_answers(name: str, dtype: type) -> None:
    rows = np.random.default_rng(0).normal(size=(N, 37)).astype(dtype)
    rows.setflags(write=False)
    found, expected = PLAIN[name](rows), PLAIN[name](torch.tensor(rows))
    assert type(found.vector) is type(found.weights) is np.ndarray
    assert found.vector.dtype == dtype and expected.vector.dtype == torch.tensor(rows).dtype
    np.testing.assert_array_equal(found.vector, expected.vector.numpy())
    np.testing.assert_array_equal(found.weights, expected.weights.numpy())


@pytest.mark.parametrize("name", PLAIN)
def test_float64_updates_are_not_rounded(name: str) -> None:
    """A spread that float32 cannot see beside the offset: the rules still tell the rows apart."""
    spread = torch.randn(N, 37, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, expected = PLAIN[name](1e-9 * spread + 1.0), PLAIN[name](spread)
    if name in ("krum", "multi_krum", "bulyan", "coordinate_median", "trimmed_mean", "meamed", "mda", "caf"):
        torch.testing.assert_close((found.vector - 1.0) * 1e9, expected.vector, atol=1e-4, rtol=1e-4)
    assert float(found.vector.mean()) == pytest.approx(1.0, abs=0.1) or name == "centered_clipping"
