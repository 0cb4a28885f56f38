"""Who holds which training images: a pure function of (settings, labels, seed).

All kinds but `resample` give every image to at most one client and are kept as one flat array;
`resample` draws a client's images when asked, so a million clients cost nothing until they train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from thistle.experiments.errors import UserError
from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Task

TRIES = 1000
NOBODY = -1


class Partition(Protocol):
    """The clients' shares: indices into the training set."""

    def __len__(self) -> int:
        """Number of clients."""

    def indices(self, client: int) -> np.ndarray:
        """The client's images, int64; read only."""

    def size(self, client: int) -> int:
        """How many images the client holds."""


@dataclass(frozen=True)
class Shares:
    """Disjoint shares: client i holds flat[offsets[i]:offsets[i + 1]], ascending."""

    flat: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def of_owners(owners: np.ndarray, clients: int) -> Shares:
        """From each image's owner (NOBODY: left out)."""
        counts = np.bincount(owners + 1, minlength=clients + 1)
        flat = np.argsort(owners, kind="stable")[counts[0] :].astype(np.int64)
        flat.setflags(write=False)
        return Shares(flat, np.concatenate([[0], np.cumsum(counts[1:])]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def indices(self, client: int) -> np.ndarray:
        _check_client(client, len(self))
        return self.flat[self.offsets[client] : self.offsets[client + 1]]

    def size(self, client: int) -> int:
        _check_client(client, len(self))
        return int(self.offsets[client + 1] - self.offsets[client])


@dataclass(frozen=True)
class Draws:
    """Client i draws `client_size` images with replacement by its own class mix, from (seed, i) alone."""

    seed: int
    clients: int
    client_size: int
    alpha: float
    by_class: np.ndarray  # all images, sorted by class
    present: np.ndarray  # images of each class that has any

    def __len__(self) -> int:
        return self.clients

    def indices(self, client: int) -> np.ndarray:
        _check_client(client, len(self))
        rng = numpy_rng(self.seed, "partition", "resample", client)
        mix = _dirichlet(rng, self.alpha, len(self.present))
        classes = np.repeat(np.arange(len(mix)), rng.multinomial(self.client_size, mix))
        starts = np.cumsum(self.present) - self.present
        return self.by_class[starts[classes] + rng.integers(0, self.present[classes])]

    def size(self, client: int) -> int:
        _check_client(client, len(self))
        return self.client_size


def nothing(clients: int) -> Partition:
    """Nobody holds any image: their data are their own."""
    return Shares.of_owners(np.empty(0, np.int64), clients)


def make_partition(task: Task, labels: np.ndarray, num_classes: int, seed: int) -> Partition:
    """Share out the training images as `task.partition` says."""
    _check_possible(task, len(labels))
    if task.partition == "resample":
        present = np.bincount(labels, minlength=num_classes)
        by_class = np.argsort(labels, kind="stable").astype(np.int64)
        return Draws(seed, task.clients, task.client_size, task.alpha, by_class, present[present > 0])
    rng = numpy_rng(seed, "partition", task.partition)
    if task.partition == "iid":
        owners = _iid(task.clients, len(labels), rng)
    elif task.partition == "shards":
        owners = _shards(task, labels, rng)
    else:
        available = np.bincount(labels, minlength=num_classes)
        count = _dirichlet_even if task.partition == "dirichlet-even" else _dirichlet_per_class
        owners = _hand_out(count(task, available, rng), labels, rng)
    return Shares.of_owners(owners, task.clients)


def _iid(clients: int, images: int, rng: np.random.Generator) -> np.ndarray:
    """Every image to somebody, sizes differ by one at most."""
    return rng.permutation(np.arange(images) % clients)


def _shards(task: Task, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sort by label, cut into clients·shards pieces of equal length (± 1), `task.shards` to each client."""
    pieces = task.clients * task.shards
    piece_owner = rng.permutation(np.repeat(np.arange(task.clients), task.shards))
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owners = np.empty(len(labels), dtype=np.int64)
    owners[by_class] = piece_owner[np.arange(len(labels)) * pieces // len(labels)]
    return owners


def _dirichlet_even(task: Task, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts, clients by classes: ⌊n/N⌋ images each, by the mix q_i ~ Dir(alpha·1) while its classes last.

    The clients choose in a shuffled order, because the last ones take what the others left.
    """
    left = available.copy()
    size = int(left.sum()) // task.clients
    counts = np.zeros((task.clients, len(left)), dtype=np.int64)
    for client in rng.permutation(task.clients):
        counts[client] = _take(size, _dirichlet(rng, task.alpha, len(left)), left, rng)
        left -= counts[client]
    return counts


def _take(size: int, mix: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`size` images by `mix`; what a class lacks is drawn again from the classes that have some."""
    taken = np.minimum(rng.multinomial(size, mix), left)
    while missing := size - int(taken.sum()):
        rest = left - taken
        weights = mix * (rest > 0)
        if (total := weights.sum()) <= 0:
            weights, total = rest.astype(float), rest.sum()
        taken += np.minimum(rng.multinomial(missing, weights / total), rest)
    return taken


def _dirichlet_per_class(task: Task, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts, clients by classes: class l is split by p^l ~ Dir(β·1_N), tried until nobody is below min_size."""
    best = 0
    for _ in range(TRIES):
        counts = _split_classes(task, available, rng)
        smallest = int(counts.sum(axis=1).min())
        if smallest >= task.min_size:
            return counts
        best = max(best, smallest)
    raise UserError(
        f"task.min-size = {task.min_size} was not reached in {TRIES} draws of task.partition = dirichlet with "
        f"task.alpha = {task.alpha:g} and task.clients = {task.clients} (the best draw's smallest client had {best}); "
        f"raise task.alpha, lower task.min-size or task.clients, or use task.partition = dirichlet-even"
    )


def _split_classes(task: Task, available: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One draw: class after class; a client already at n/N or above gets no more."""
    counts = np.zeros((task.clients, len(available)), dtype=np.int64)
    held = np.zeros(task.clients, dtype=np.int64)
    for label, images in enumerate(available):
        shares = _dirichlet(rng, task.alpha, task.clients) * (held * task.clients < available.sum())
        if (total := shares.sum()) <= 0:  # a tiny alpha gave the whole class to a client that is full
            shares = (held == held.min()).astype(float)
            total = shares.sum()
        ends = np.rint(np.cumsum(shares / total) * images).astype(np.int64)
        ends[-1] = images
        counts[:, label] = np.diff(ends, prepend=0)
        held += counts[:, label]
    return counts


def _hand_out(counts: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image's owner, so that client i gets counts[i, l] images of class l, chosen at random."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    nobodys = np.bincount(labels, minlength=counts.shape[1]) - counts.sum(axis=0)
    holders = np.append(np.arange(len(counts)), NOBODY)
    owners = np.empty(len(labels), dtype=np.int64)
    owners[by_class] = np.repeat(np.tile(holders, counts.shape[1]), np.vstack([counts, nobodys]).T.ravel())
    return owners


def _dirichlet(rng: np.random.Generator, alpha: float, length: int) -> np.ndarray:
    """Dir(alpha·1). Above 1e100 the sum could overflow, and the draw is uniform to the last bit long before."""
    return rng.dirichlet(np.full(length, min(alpha, 1e100)))


def _check_client(client: int, clients: int) -> None:
    if not 0 <= client < clients:
        raise IndexError(f"client {client} of {clients}")


def _check_possible(task: Task, images: int) -> None:
    """Refuse what no draw could satisfy."""
    if images == 0:
        raise UserError(f"task.name = {task.name} has no training images to share out")
    if task.partition == "resample":
        _check_min_size(task, task.client_size, f"task.client-size = {task.client_size}", "raise task.client-size")
        return
    if task.clients > images:
        raise UserError(
            f"task.clients = {task.clients} but there are only {images} training images; "
            f"use at most {images} clients, or task.partition = resample"
        )
    if task.partition == "shards":
        _check_shards(task, images)
    each = f"{images} images for {task.clients} clients"
    _check_min_size(task, images // task.clients, each, "task.clients")


def _check_shards(task: Task, images: int) -> None:
    pieces = task.clients * task.shards
    if pieces > images:
        raise UserError(
            f"task.shards = {task.shards} for task.clients = {task.clients} makes {pieces} shards of only {images} "
            f"training images; use at most {images // task.clients} shards or {images // task.shards} clients"
        )
    _check_min_size(task, images // pieces * task.shards, f"{pieces} shards of {images} images", "task.clients")


def _check_min_size(task: Task, smallest: int, because: str, cure: str) -> None:
    if smallest < task.min_size:
        raise UserError(
            f"task.min-size = {task.min_size} but with task.partition = {task.partition} a client may get only "
            f"{smallest} ({because}); lower task.min-size or {cure}"
        )
