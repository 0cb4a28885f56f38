"""Rules that treat every coordinate alone: most sort the clients' values and keep those in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import (
    Aggregate,
    original,
    require,
    require_finite,
    require_weights,
    rows_seen,
)
from thistle.strategies.aggregators.choice import INTEGERS, take
from thistle.strategies.aggregators.network import Operation, apply, network
from thistle.strategies.aggregators.numpy_input import accepts_numpy
from thistle.strategies.aggregators.weighted import Kept, Reduce, quantised, weighted_inner_mean, weighted_middle

WIDTH = 2**15  # columns at a time: long enough that the calls cost little, short enough for the outer caches
CHUNK_VALUES = 2**22


@accepts_numpy
def coordinate_median(updates: Tensor, weights: Tensor | None = None, *, mixing: Tensor | None = None) -> Aggregate:
    """The median of every coordinate, the mean of the two middle values for even n (Yin et al. 2018).

    With weights that differ: the value at which the cumulative weight passes one half, the mean of two values where it
    is one half between them. Cap them first (`cap_weights`), or a client with half the weight decides alone.

    Cost: a pruned sorting network, about n·log²n / 3 row operations a chunk; arithmetic on cached data. With weights:
    the whole network in float64, and a look at every row: three to four times as much.
    """
    n = rows_seen(updates, mixing)
    low, high = (n - 1) // 2, n // 2
    whole = _unequal(weights, n, updates)
    if whole is None:
        reduce = in_order(network(n, low, high), lambda rows: middle(rows[low : high + 1]))
    else:
        reduce = weighted_middle(whole)
    return _reduced(updates, n, reduce, whole, mixing)


@accepts_numpy
def trimmed_mean(
    updates: Tensor,
    f: int | None = None,
    beta: float | None = None,
    weights: Tensor | None = None,
    *,
    mixing: Tensor | None = None,
) -> Aggregate:
    """In every coordinate, the mean of what is left without the f lowest and f highest values (Yin et al. 2018).

    Give f < n/2, or beta < 1/2 for f = ⌊beta·n⌋. With weights that differ, the weight beta (or f/n) is cut off at each
    end, and a value at a cut counts by the part of its weight that is inside. Cost: as the median.
    """
    n = rows_seen(updates, mixing)
    whole = _unequal(weights, n, updates)
    if f is None:
        require(beta is not None and 0 <= beta < 0.5, f"trimmed mean needs f, or 0 ≤ beta < 0.5; got beta={beta}")
        share = beta or 0.0
        f = int(share * n + 1e-9)  # 0.29 of 100 is 29, though the product of the floats is a little less
    else:
        share = f / n
    require(0 <= 2 * f < n, f"trimmed mean needs 0 ≤ 2f < n; got f={f}, n={n}")
    if whole is None:
        kept = slice(f, n - f)
        reduce = in_order(network(n, f, n - f - 1), lambda rows: middle(rows[kept]))
    else:
        reduce = weighted_inner_mean(whole, share)
    return _reduced(updates, n, reduce, whole, mixing)


@accepts_numpy
def meamed(updates: Tensor, f: int, *, mixing: Tensor | None = None) -> Aggregate:
    """In every coordinate, the mean of the n - f values nearest to the median (mean around median, Xie et al. 2018).

    2f < n; of two values equally near, the lower one. Cost: a whole sorting network, and a window that moves over the
    sorted rows.
    """
    n = rows_seen(updates, mixing)
    require(0 <= 2 * f < n, f"MeaMed needs 0 ≤ 2f < n; got f={f}, n={n}")
    reduce = in_order(network(n, 0, n - 1, inside_sorted=True), lambda rows: around_median(rows, n - f))
    return _reduced(updates, n, reduce, None, mixing)


@accepts_numpy
def robust_learning_rate(
    updates: Tensor, threshold: int, weights: Tensor | None = None, *, mixing: Tensor | None = None
) -> Aggregate:
    """The weighted mean, reversed in every coordinate where |Σ sign Δ_ij| is below the threshold (Ozdayi et al. 2021).

    One vote per row, whatever its weight; 0 ≤ threshold ≤ n. The weights are the mean's: each row has a part in every
    coordinate, reversed or not. Cost: two passes over each chunk, limited by memory bandwidth.
    """
    n = rows_seen(updates, mixing)
    require(0 <= threshold <= n, f"RLR needs 0 ≤ threshold ≤ n; got threshold={threshold}, n={n}")
    shares = require_weights(weights, n, updates)
    factors, vector = shares.to(updates.dtype), updates.new_empty(updates.shape[1])
    for columns, values in chunks(updates, n, mixing):
        mean, votes = torch.mv(values.T, factors), values.sign().sum(0)
        vector[columns] = torch.where(votes.abs() >= threshold, mean, -mean)
    if not torch.isfinite(vector.sum()):
        require_finite(updates)
    return Aggregate(vector, original(shares, mixing))


def _unequal(weights: Tensor | None, n: int, like: Tensor) -> Tensor | None:
    """The weights as whole numbers; None where all are the same."""
    shares = require_weights(weights, n, like)
    return quantised(shares) if bool((shares != shares[0]).any()) else None


def _reduced(updates: Tensor, n: int, reduce: Reduce, weights: Tensor | None, mixing: Tensor | None) -> Aggregate:
    """A sweep's answer; a row's part is the number of coordinates in which it was kept, times its weight."""
    vector, counts = sweep(updates, n, reduce, mixing=mixing)
    parts = counts if weights is None else counts * weights
    return Aggregate(vector, original(parts / parts.sum(), mixing))


def middle(rows: list[Tensor]) -> Kept:
    """The mean of these rows, of which the first is the lowest and the last the highest."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total.div_(len(rows)), rows[0], rows[-1]


def around_median(rows: list[Tensor], keep: int) -> Kept:
    """The mean of the `keep` values nearest to the median, rows sorted; of two equally near the lower one.

    These are neighbours in sorted order: a window that moves up by one wherever the value that would come in is
    nearer than the one that would go out. The first `keep` rows are overwritten by the window's values, so that nothing
    is added and taken off again (which would lose small values beside a huge one).
    """
    n = len(rows)
    median = middle(rows[(n - 1) // 2 : n // 2 + 1])[0]
    low, high, above, below = rows[0].clone(), rows[keep - 1].clone(), median.clone(), median.clone()
    moves, scratch = torch.zeros(2, len(median), dtype=INTEGERS[median.dtype], device=median.device)
    for goes in range(n - keep):
        comes, slot = goes + keep, rows[goes % keep]
        torch.sub(rows[comes], median, out=above)
        torch.sub(median, rows[goes], out=below)
        torch.lt(above, below, out=moves)
        for one, other in ((low, rows[goes + 1]), (high, rows[comes]), (slot, rows[comes])):
            take(one, other, moves, scratch)
    return middle(rows[:keep])[0], low, high


def in_order(operations: tuple[Operation, ...], keep: Callable[[list[Tensor]], Kept]) -> Reduce:
    """Sort the rows of a chunk by a network, and let `keep` reduce them."""
    scratch: list[Tensor] = []

    def reduce(values: Tensor) -> Kept:
        if not scratch:
            scratch.append(torch.empty_like(values, memory_format=torch.contiguous_format))
        return keep(apply(operations, scratch[0][:, : values.shape[1]].copy_(values)))

    return reduce


def sweep(
    updates: Tensor, n: int, reduce: Reduce, *, mixing: Tensor | None = None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Let `reduce` have n rows (the block's, the mixed or the chosen ones) chunk by chunk.

    Returns the vector, and for each of the n rows in how many coordinates its value was among the kept.
    """
    width = _width(n, updates.shape[1])
    vector, total = updates.new_empty(updates.shape[1]), updates.new_zeros(())
    counts = torch.zeros(n, dtype=torch.float64, device=updates.device)
    work, ones = updates.new_empty(n, width), updates.new_ones(width)
    for columns, values in chunks(updates, n, mixing, chosen):
        size = values.shape[1]
        total += values.sum()
        vector[columns], low, high = reduce(values)
        inside = torch.clamp(values, low, high, out=work[:, :size])
        counts += torch.mv(torch.eq(inside, values, out=inside), ones[:size])
    if not torch.isfinite(total):
        require_finite(updates)
    return vector, counts


def chunks(
    updates: Tensor, n: int, mixing: Tensor | None = None, chosen: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """The columns of the n rows that a rule sees, some at a time; one chunk's memory is the next one's."""
    d, width = updates.shape[1], _width(n, updates.shape[1])
    matrix = None if mixing is None else mixing.to(updates.dtype)
    loaded = updates.new_empty(0 if matrix is chosen is None else n, width)
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        values = updates[:, columns]
        if matrix is not None:
            values = torch.mm(matrix, values, out=loaded[:, : values.shape[1]])
        elif chosen is not None:
            values = torch.index_select(values, 0, chosen, out=loaded[:, : values.shape[1]])
        yield columns, values


def _width(n: int, d: int) -> int:
    return max(1, min(WIDTH, CHUNK_VALUES // n, d // 8))
