"""A batch's gradient in parts: the same to the bit for any number of threads, and the gradient of the whole batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from thistle.tasks import shards, threads
from thistle.tasks.shards import PartDropout, Shards, multiplications
from thistle.tasks.threads import every_core
from thistle.tasks.training import Recipe, plain_loss, train

IMAGES, LABELS = torch.rand(50, 2, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 4


def network(drop: float = 0.0) -> nn.Sequential:
    torch.manual_seed(2)
    head = [nn.Flatten(), nn.Dropout(drop), nn.Linear(180, 4)]
    return nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), *head)


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(180, 4))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, pixels: Tensor) -> Tensor:
        return self.inner(pixels) + torch.rand(4)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of these images are work enough for a part."""
    monkeypatch.setattr(shards, "LEAST", 10 * multiplications(network(), IMAGES[:1]))


def trained(model: nn.Module, cores: int, monkeypatch: pytest.MonkeyPatch, backward: bool = True) -> list[Tensor]:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    images = IMAGES.to(next(model.parameters()).dtype)
    generator, recipe = torch.Generator().manual_seed(3), Recipe(2, 40, 0.1, weight_decay=0.01)
    cut = Shards(model, images[:1])
    torch.manual_seed(4)
    with every_core():
        more = {"backward": cut} if backward else {}
        loss = train(model, images, LABELS, recipe, generator, plain_loss, **more)  # type: ignore[arg-type]
    return [torch.tensor(loss), *(parameter.detach().clone() for parameter in model.parameters())]


def test_multiplications_are_those_of_its_layers() -> None:
    assert multiplications(network(), IMAGES[:1]) == 5 * 2 * 9 * 36 + 180 * 4


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch, drop: float) -> None:
    found = [trained(network(drop), cores, monkeypatch) for cores in (1, 2, 3, 7)]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_parts_add_up_to_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network().double()
    whole = trained(copy.deepcopy(model), 1, monkeypatch, backward=False)
    for a, b in zip(trained(model, 3, monkeypatch), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_the_number_of_parts_goes_by_the_batch_and_the_network() -> None:
    cut = Shards(network(), IMAGES[:1])
    assert [cut.parts(count) for count in (1, 10, 29, 30, 39, 40, 10_000)] == [1, 1, 1, 3, 3, 4, shards.MOST]


@pytest.mark.parametrize("model", [normed(), Own()])
def test_what_cannot_be_cut_stays_whole(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Shards(copy.deepcopy(model), IMAGES[:1]).parts(10_000) == 1
    whole = trained(copy.deepcopy(model), 3, monkeypatch, backward=False)
    assert all(torch.equal(a, b) for a, b in zip(trained(model, 3, monkeypatch), whole, strict=True))


def test_a_layer_that_is_watched_keeps_the_batch_whole() -> None:
    model = network()
    model[0].register_forward_hook(lambda *_: None)
    assert Shards(model, IMAGES[:1]).parts(10_000) == 1


def test_dropout_in_parts_drops_its_share_and_keeps_the_mean() -> None:
    model, seen = network(0.3), list[Tensor]()
    cut = Shards(model, IMAGES[:1])
    (drop,) = (module for module in model.modules() if isinstance(module, nn.Dropout))
    assert type(drop) is PartDropout and drop.training

    def loss(net: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        seen.append(drop(torch.ones(20_000)))
        return plain_loss(net, pixels, labels)

    cut(loss, model, IMAGES, LABELS)
    assert len(seen) == cut.parts(50) == 5 and not torch.equal(seen[0], seen[1])
    for one in seen:
        assert abs(float((one == 0).double().mean()) - 0.3) < 0.02
        assert abs(float(one.mean()) - 1) < 0.03
    torch.manual_seed(0)
    usual = nn.functional.dropout(torch.ones(50), 0.3)
    torch.manual_seed(0)
    assert torch.equal(drop(torch.ones(50)), usual), "outside of a part it is torch's own"


def test_large_networks_see_few_images_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Shards(network(), IMAGES[:1])
    assert cut.chunk(500) == 10, "a part's worth"
    monkeypatch.setattr(shards, "LEAST", 1)
    assert cut.chunk(500) == shards.LEAST_CHUNK
    monkeypatch.setattr(shards, "LEAST", 100 * cut.work)
    assert cut.chunk(500) == 500
