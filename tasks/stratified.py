"""Some of the images, every class by its share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thistle.experiments.randomness import seed_for

Ties = Callable[[int], np.ndarray]
"""Ranks of this many classes: which one gets the next image when remainders are equal."""
Pick = Callable[[np.ndarray, int], np.ndarray]
"""This many of a class's images."""


def stratified(labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` indices by lot, ascending, every class by its share (largest remainders, ties by lot)."""
    return _by_share(labels, size, rng.random, lambda members, count: rng.choice(members, count, replace=False))


def stratified_always(labels: np.ndarray, size: int) -> np.ndarray:
    """`size` indices, ascending, every class by its share (largest remainders), always the same ones.

    The order within a class comes from PCG64's raw stream, which numpy promises never to change.
    """
    dice = np.random.PCG64(seed_for(0, "stratified")).random_raw(len(labels))
    return _by_share(
        labels, size, np.arange, lambda members, count: members[np.argsort(dice[members], kind="stable")[:count]]
    )


def _by_share(labels: np.ndarray, size: int, ties: Ties, pick: Pick) -> np.ndarray:
    classes, counts = np.unique(labels, return_counts=True)
    exact = size * counts / len(labels)
    takes = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((ties(len(classes)), takes - exact))
    takes[by_remainder[: size - takes.sum()]] += 1
    chosen = [pick(np.flatnonzero(labels == label), take) for label, take in zip(classes, takes, strict=True)]
    return np.sort(np.concatenate(chosen))
