"""Work shared out to threads: results in order, failures where they belong, nothing random out of turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from thistle.tasks import threads
from thistle.tasks.models import build_model
from thistle.tasks.threads import Background, Cancelled, every_core, on_copies, share_out
from thistle.tasks.training import evaluate


@pytest.fixture(params=[1, 3])
def several(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As many threads as on a machine with this many processors."""
    monkeypatch.setattr(threads, "cores", lambda: request.param)
    return int(request.param)


def workers_that(work: Callable[[int], int], made: list[int]) -> Callable[[], Callable[[int], int]]:
    def make() -> Callable[[int], int]:
        made.append(threading.get_ident())
        return work

    return make


def test_results_come_in_the_items_order(several: int) -> None:
    made: list[int] = []
    with every_core():
        assert share_out(workers_that(lambda item: item * item, made), iter(range(50)), 50) == [
            i * i for i in range(50)
        ]
    assert made == [threading.get_ident()] * several
    assert share_out(workers_that(lambda item: item, made), [], 0) == []


def test_there_are_no_more_threads_than_items(several: int) -> None:
    made: list[int] = []
    with every_core():
        share_out(workers_that(lambda item: item, made), [1, 2], 2)
    assert len(made) == min(several, 2)


def test_alone_outside(several: int) -> None:
    with every_core():
        pass
    made: list[int] = []
    share_out(workers_that(lambda item: item, made), range(9), 9)
    assert len(made) == 1


def test_all_threads_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 3)
    meeting = threading.Barrier(3, timeout=60)

    def meet(item: int) -> int:
        meeting.wait()  # breaks, unless three items are worked on at the same time
        return item

    with every_core():
        assert share_out(lambda: meet, range(6), 6) == list(range(6))


@pytest.mark.parametrize("bad", [0, 7, 19])
def test_what_one_thread_raises_is_raised(several: int, bad: int) -> None:
    def work(item: int) -> int:
        if item == bad:
            raise ValueError(f"item {bad}")
        return item

    with every_core(), pytest.raises(ValueError, match=f"item {bad}"):
        share_out(lambda: work, range(20), 20)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("Thread-") and thread.is_alive()]


def test_items_are_drawn_in_their_order(several: int) -> None:
    def drawn() -> Iterator[float]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(40):
            yield float(torch.rand((), generator=generator))

    with every_core():
        assert share_out(lambda: float, drawn(), 40) == list(drawn())


class Noisy(nn.Module):
    """Draws random numbers in eval mode, too."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.flatten(1)[:, :4] + torch.rand(len(pixels), 4)


def test_a_network_that_draws_random_numbers_gets_its_items_in_turn(several: int) -> None:
    pixels, labels = torch.rand(60, 1, 4, 4), torch.randint(4, (60,))
    torch.manual_seed(3)
    expected = evaluate(Noisy(), pixels, labels, 7)[1]
    torch.manual_seed(3)
    with every_core():
        assert evaluate(Noisy(), pixels, labels, 7)[1] == expected


class Keeping(nn.Module):
    """Keeps what it saw last: threads that shared it would see each other's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, pixels: Tensor) -> Tensor:
        self.seen = pixels.flatten(1)
        return torch.stack([self.layer(self.seen[row]) for row in range(len(pixels))])


@pytest.mark.parametrize("name", ["cnn-emnist", "vgg8", "keeping"])
def test_an_evaluation_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from thistle.experiments import settings

    torch.manual_seed(0)
    model = Keeping() if name == "keeping" else build_model(settings.Network(name=name), (1, 8, 8), 10, 0)
    pixels, labels = torch.rand(90, 1, 4, 4) if name == "keeping" else torch.rand(90, 1, 8, 8), torch.arange(90) % 4
    alone = evaluate(model, pixels, labels, 8)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    with every_core():
        shared = evaluate(model, pixels, labels, 8)
    assert torch.equal(alone[0], shared[0]) and alone[1] == shared[1]


def test_each_thread_has_a_model_of_its_own(several: int) -> None:
    model, used = nn.Linear(2, 2), set[int]()
    meeting = threading.Barrier(several, timeout=60)

    def work(own: nn.Module, item: int) -> None:
        meeting.wait()
        used.add(id(own))

    with every_core():
        on_copies(work, model, torch.zeros(1, 2), range(several), several)
    assert len(used) == several and id(model) in used


def test_a_background_gives_its_result_or_its_error() -> None:
    assert Background(partial(int, "7")).result() == 7
    with pytest.raises(ValueError, match="seven"):
        Background(partial(int, "seven")).result()


def test_a_cancelled_background_ends_with_the_part_that_it_is_at(several: int) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        begun.set()
        go_on.wait(60)
        done.append(item)

    with every_core():
        background = Background(lambda: share_out(lambda: work, range(1000), 1000))
        begun.wait(60)
        background.cancel()
        go_on.set()
        with pytest.raises(Cancelled):
            background.result()
    assert len(done) <= several
