"""Work in fixed parts, on as many threads as there are processors: the parts decide the bits, the threads the time.

torch lets go of Python's lock while it computes. A client has one thread, because its neighbours have the other
processors; a server has rounds in which nobody else needs them. Imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
R = TypeVar("R")


class _Allowed:
    """How many threads this process may use at once."""

    threads = 1


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def every_core() -> Iterator[None]:
    """Inside, work is divided among one thread per processor; outside, the calling thread does it alone."""
    before, _Allowed.threads = _Allowed.threads, cores()
    try:
        yield
    finally:
        _Allowed.threads = before


def share_out(workers: Callable[[], Callable[[T], R]], items: Iterable[T], count: int) -> list[R]:
    """What a worker makes of each of the `count` items, in their order.

    `workers` makes one for each thread, all of them in the caller's. Items are taken one at a time and in their order,
    so that drawing random numbers as they are taken is safe.
    """
    share: _Share[T, R] = _Share(items)
    own, *others = [workers() for _ in range(max(min(_Allowed.threads, count), 1))]
    helpers = [Thread(target=share.help, args=(worker,)) for worker in others]
    for helper in helpers:
        helper.start()
    try:
        share.work(own)
    finally:
        share.over = True
        for helper in helpers:
            helper.join()
    if share.failures:
        raise share.failures[0]
    return [share.done[place] for place in range(len(share.done))]


class _Share(Generic[T, R]):
    """The items that are left, and what was made of the others."""

    def __init__(self, items: Iterable[T]) -> None:
        self.left, self.lock = enumerate(items), Lock()
        self.done: dict[int, R] = {}
        self.failures: list[BaseException] = []
        self.over = False
        self.caller = current_thread()

    def work(self, worker: Callable[[T], R]) -> None:
        """Until nothing is left, or more would be useless."""
        while not (self.over or self.failures):
            if isinstance(self.caller, Background) and self.caller.cancelled:
                raise Cancelled
            with self.lock:
                taken = next(self.left, None)
            if taken is None:
                return
            place, item = taken
            self.done[place] = worker(item)

    def help(self, worker: Callable[[T], R]) -> None:
        """The same, in a thread of its own."""
        import torch

        torch.set_num_threads(1)  # which each thread has for itself
        try:
            self.work(worker)
        except BaseException as error:
            self.failures.append(error)


def on_copies(
    work: Callable[[nn.Module, T], R], model: nn.Module, example: Tensor, items: Iterable[T], count: int
) -> list[R]:
    """`work` on the model in eval mode and each item; every further thread has a copy of the model.

    A model that draws random numbers even then, as `example` shows, gets its items one after the other.
    """
    if _Allowed.threads == 1 or count == 1 or example.device.type != "cpu" or _draws(model, example):
        return [work(model, item) for item in items]
    models = iter([model])
    return share_out(lambda: _on(work, next(models, None) or deepcopy(model)), items, count)


def _on(work: Callable[[nn.Module, T], R], model: nn.Module) -> Callable[[T], R]:
    return lambda item: work(model, item)


def _draws(model: nn.Module, example: Tensor) -> bool:
    import torch

    before = torch.get_rng_state()
    with torch.no_grad():
        model(example)
    if torch.equal(before, torch.get_rng_state()):
        return False
    torch.set_rng_state(before)
    return True


class Cancelled(Exception):
    """Nobody wants the result any more."""


class Background(Thread, Generic[R]):
    """A call that goes on in a thread of its own."""

    def __init__(self, call: Callable[[], R]) -> None:
        super().__init__(name="background")
        self.cancelled = False
        self._call = call
        self._found: list[R] = []
        self._failures: list[BaseException] = []
        self.start()

    def run(self) -> None:
        """As Thread has it."""
        import torch

        torch.set_num_threads(1)
        try:
            self._found.append(self._call())
        except BaseException as error:
            self._failures.append(error)

    def result(self) -> R:
        """What it returned, once it has; what it raised is raised here."""
        self.join()
        if self._failures:
            raise self._failures[0]
        return self._found[0]

    def cancel(self) -> None:
        """Let it end with the part that it is at."""
        self.cancelled = True
