"""The minimum-diameter rule."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, original, require, rows_seen
from thistle.strategies.aggregators.gram import gram, mixed, squared_distances
from thistle.strategies.aggregators.numpy_input import accepts_numpy

MOST = 16
"""The largest f: the search has 2^f ends."""


@accepts_numpy
def mda(updates: Tensor, f: int, *, mixing: Tensor | None = None, products: Tensor | None = None) -> Aggregate:
    """The mean of the n - f updates with the least largest distance between two of them (El Mhamdi et al. 2020).

    2f < n, f ≤ 16. Of several sets with the same diameter, the one with the least sum of squared distances.
    Of the two farthest updates one must go; then again, f times. So the search has at most 2^f ends instead of n over
    f, whatever n.

    Cost: one Gram pass, one combination; n² log n and a look at some of the n² pairs for each end.
    """
    n = rows_seen(updates, mixing)
    require(0 <= 2 * f < n, f"MDA needs 0 ≤ 2f < n; got f={f}, n={n}")
    require(f <= MOST, f"MDA needs f ≤ {MOST}, because its search has 2^f ends; got f={f}")
    distances = squared_distances(mixed(gram(updates) if products is None else products, mixing))
    kept = _densest(distances, f)
    weights = original(kept / kept.sum(dtype=torch.float64), mixing)
    return Aggregate(combine(updates, weights), weights)


def _densest(distances: Tensor, f: int) -> Tensor:
    """n booleans: the n - f rows of least diameter."""
    n = len(distances)
    first, second = torch.triu_indices(n, n, 1, device=distances.device)
    order = distances[first, second].sort(descending=True, stable=True).indices
    pairs = torch.stack([first[order], second[order]], dim=1).tolist()
    ends = dict(_ends([(1 << i, 1 << j) for i, j in pairs], f))
    farthest = max(ends.values())
    candidates = [[not gone >> row & 1 for row in range(n)] for gone, whole in ends.items() if whole == farthest]
    kept = torch.tensor(candidates, device=distances.device)
    inside = kept.to(distances.dtype)
    return kept[((inside @ distances) * inside).sum(dim=1).argmin()]


def _ends(pairs: list[tuple[int, int]], f: int) -> Iterator[tuple[int, int]]:
    """What can be left out (a bit per row), and the first pair, from the farthest, that is then still whole."""
    seen, todo = {0}, [(0, 0, f)]
    while todo:
        gone, position, left = todo.pop()
        while position < len(pairs) and gone & (pairs[position][0] | pairs[position][1]):
            position += 1  # never beyond the last pair while somebody must still go: n - f > f
        if not left:
            yield gone, position
            continue
        for goes in pairs[position]:
            if gone | goes not in seen:
                seen.add(gone | goes)
                todo.append((gone | goes, position, left - 1))
