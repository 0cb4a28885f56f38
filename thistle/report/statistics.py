"""Means with their errors, and whether a difference is more than chance."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

LEVEL = 0.05
"""A difference counts as significant below this, after Holm's correction."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error."""
    return fmean(values), standard_error(values)


def over_seeds(count: int) -> str:
    """What a table's figures are, for its caption."""
    return "one seed" if count == 1 else f"mean ± standard error over {count} seeds"


def standard_error(values: Sequence[float]) -> float | None:
    """Of their mean; one value has none."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def welch(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t-test (unequal variances); nothing where the seeds do not allow one."""
    from scipy.stats import ttest_ind

    if min(len(ours), len(theirs)) < 2 or (stdev(ours) == 0 and stdev(theirs) == 0):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that values are nearly the same is no news to anybody
        return float(ttest_ind(ours, theirs, equal_var=False).pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the k-th smallest times n − k + 1, never decreasing."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, values[i] * (len(values) - rank)))
        corrected[i] = largest
    return corrected
