"""How the model serves each honest client: accuracy on a test split that has the client's own class mix.

Only a simulation can know this: nobody knows the partition of real nodes, or who of them is honest. The truth is used
for scoring only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from thistle.experiments.randomness import numpy_rng
from thistle.tasks.task import Task

MOST = 1000
"""Honest clients that are measured; of more, the seed chooses these."""
PURPOSE = "client-test"


@dataclass(frozen=True)
class ClientTests:
    """The splits as indices into the test set: one client's after the other's, each of its size."""

    flat: np.ndarray
    sizes: np.ndarray

    @staticmethod
    def draw(task: Task, malicious: Collection[int], seed: int) -> ClientTests | None:
        """Each honest client's split, by the seed; None where no honest client has images of classes in the test set.

        A split has as many images of each class as the client trains on. Where the test set has too few of one class,
        the client's counts are scaled down alike, and rounded up.
        """
        labels = np.asarray(task.dataset.test.labels)
        by_class = [np.flatnonzero(labels == label) for label in range(task.classes)]
        splits = [
            _split(np.bincount(_labels(task, client), minlength=task.classes), by_class, seed, client)
            for client in _measured(len(task.partition), malicious, seed)
        ]
        found = [split for split in splits if len(split)]
        if not found:
            return None
        return ClientTests(np.concatenate(found), np.array([len(split) for split in found]))

    def __iter__(self) -> Iterator[np.ndarray]:
        """One split after the other."""
        return iter(np.split(self.flat, np.cumsum(self.sizes)[:-1]))

    def accuracies(self, right: np.ndarray) -> np.ndarray:
        """Each client's accuracy, from one boolean per test image."""
        starts = np.cumsum(self.sizes) - self.sizes
        return np.add.reduceat(right[self.flat], starts, dtype=np.int64) / self.sizes

    def measure(self, right: np.ndarray) -> dict[str, float]:
        """The worst client, the 10th percentile (between two clients: interpolated) and the mean."""
        found = self.accuracies(right)
        return {"worst": float(found.min()), "p10": float(np.percentile(found, 10)), "mean": float(found.mean())}


def _measured(clients: int, malicious: Collection[int], seed: int) -> np.ndarray:
    """The honest clients, or `MOST` of them; who attacks in some rounds only is not honest."""
    honest = np.setdiff1d(np.arange(clients), np.fromiter(malicious, np.int64, len(malicious)), assume_unique=True)
    if len(honest) <= MOST:
        return honest
    return np.sort(numpy_rng(seed, PURPOSE, "chosen").choice(honest, MOST, replace=False))


def _labels(task: Task, client: int) -> np.ndarray:
    return np.asarray(task.dataset.train.labels)[task.partition.indices(client)]


def _split(counts: np.ndarray, by_class: list[np.ndarray], seed: int, client: int) -> np.ndarray:
    """Test images in the proportions of `counts`, at most as many, each at most once."""
    rng = numpy_rng(seed, PURPOSE, int(client))
    wanted = _fit(counts, np.array([len(images) for images in by_class]))
    drawn = [rng.choice(by_class[label], wanted[label], replace=False) for label in np.flatnonzero(wanted)]
    return np.concatenate(drawn).astype(np.int32) if drawn else np.empty(0, np.int32)


def _fit(counts: np.ndarray, available: np.ndarray) -> np.ndarray:
    """⌈s·counts⌉ with the largest s ≤ 1 for which the test set has enough; classes that it lacks are left out."""
    wanted = np.where(available > 0, counts, 0).astype(np.int64)
    if not (wanted > available).any():
        return wanted
    scarce = int(np.argmin(np.where(wanted > 0, available / np.maximum(wanted, 1), np.inf)))
    return np.minimum(-(-wanted * available[scarce] // wanted[scarce]), available)
