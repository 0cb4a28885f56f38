"""Rules that treat every coordinate alone: sort the clients' values, keep those in the middle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, original, require, require_finite, rows_seen
from thistle.strategies.aggregators.network import Operation, apply, network
from thistle.strategies.aggregators.numpy_input import accepts_numpy

WIDTH = 2**15  # columns at a time: long enough that the calls cost little, short enough for the outer caches
CHUNK_VALUES = 2**22

Kept = tuple[Tensor, Tensor, Tensor]  # a chunk's result, and the lowest and highest value that went into it


@accepts_numpy
def coordinate_median(updates: Tensor, *, mixing: Tensor | None = None) -> Aggregate:
    """The median of every coordinate, the mean of the two middle values for even n (Yin et al. 2018).

    Cost: a pruned sorting network, about n·log²n / 3 row operations a chunk; arithmetic on cached data.
    """
    n = rows_seen(updates, mixing)
    low, high = (n - 1) // 2, n // 2
    vector, counts = sweep(updates, n, network(n, low, high), lambda rows: middle(rows[low : high + 1]), mixing=mixing)
    return Aggregate(vector, original(counts / counts.sum(), mixing))


@accepts_numpy
def trimmed_mean(
    updates: Tensor, f: int | None = None, beta: float | None = None, *, mixing: Tensor | None = None
) -> Aggregate:
    """In every coordinate, the mean of what is left without the f lowest and f highest values (Yin et al. 2018).

    Give f < n/2, or beta < 1/2 for f = ⌊beta·n⌋. Cost: as the median.
    """
    n = rows_seen(updates, mixing)
    if f is None:
        require(beta is not None and 0 <= beta < 0.5, f"trimmed mean needs f, or 0 ≤ beta < 0.5; got beta={beta}")
        f = int((beta or 0.0) * n + 1e-9)  # 0.29 of 100 is 29, though the product of the floats is a little less
    require(0 <= 2 * f < n, f"trimmed mean needs 0 ≤ 2f < n; got f={f}, n={n}")
    kept = slice(f, n - f)
    vector, counts = sweep(updates, n, network(n, f, n - f - 1), lambda rows: middle(rows[kept]), mixing=mixing)
    return Aggregate(vector, original(counts / counts.sum(), mixing))


def middle(rows: list[Tensor]) -> Kept:
    """The mean of these rows, of which the first is the lowest and the last the highest."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total.div_(len(rows)), rows[0], rows[-1]


def around_median(rows: list[Tensor], keep: int) -> Kept:
    """The mean of the `keep` values nearest to the median, rows sorted; of two equally near the lower one.

    These are neighbours in sorted order: a window that moves up by one wherever the value that would come in is
    nearer than the one that would go out. Slots hold the window's values, so that nothing is added and taken off
    again (which would lose small values beside a huge one).
    """
    n = len(rows)
    median = middle(rows[(n - 1) // 2 : n // 2 + 1])[0]
    slots, low, high = [row.clone() for row in rows[:keep]], rows[0], rows[keep - 1]
    for goes in range(n - keep):
        comes = goes + keep
        moves = rows[comes] - median < median - rows[goes]
        slots[goes % keep] = torch.where(moves, rows[comes], slots[goes % keep])
        low, high = torch.where(moves, rows[goes + 1], low), torch.where(moves, rows[comes], high)
    return middle(slots)[0], low, high


def sweep(
    updates: Tensor,
    n: int,
    operations: tuple[Operation, ...],
    keep: Callable[[list[Tensor]], Kept],
    *,
    mixing: Tensor | None = None,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sort n rows (the block's, the mixed or the chosen ones) chunk by chunk and let `keep` reduce them.

    Returns the vector, and for each of the n rows in how many coordinates its value was among the kept.
    """
    d = updates.shape[1]
    width = max(1, min(WIDTH, CHUNK_VALUES // n, d // 8))
    vector = updates.new_empty(d)
    counts, total = torch.zeros(n, dtype=torch.float64, device=updates.device), updates.new_zeros(())
    scratch, loaded, ones = updates.new_empty(n, width), updates.new_empty(n, width), updates.new_ones(width)
    matrix = None if mixing is None else mixing.to(updates.dtype)
    for start in range(0, d, width):
        values = updates[:, start : start + width]
        size = values.shape[1]
        work = scratch[:, :size]
        if matrix is not None:
            values = torch.mm(matrix, values, out=loaded[:, :size])
        elif chosen is not None:
            values = torch.index_select(values, 0, chosen, out=loaded[:, :size])
        total += values.sum()
        result, low, high = keep(apply(operations, work.copy_(values)))
        vector[start : start + size] = result
        low, high = low.clone(), high.clone()
        inside = torch.eq(torch.clamp(values, low, high, out=work), values, out=work)
        counts += torch.mv(inside, ones[:size])
    if not torch.isfinite(total):
        require_finite(updates)
    return vector, counts
