"""Training in bfloat16: near float32's update, in float32 weights, and refused where the hardware has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from tests.federations import model_sha, run, tiny
from thistle.experiments.errors import UserError
from thistle.experiments.settings import Network
from thistle.protocol.layout import Layout
from thistle.tasks.models import build_model
from thistle.tasks.training import Recipe, check_precision, train

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=2, batch_size=10, lr=0.05, momentum=0.5)


def update(recipe: Recipe) -> torch.Tensor:
    """Of a small network with two convolutions, trained on noise."""
    torch.manual_seed(0)
    network = build_model(Network(name="cnn-cifar"), (3, 16, 16), 4, seed=1)
    layout = Layout.of(network)
    before = layout.vector(network.state_dict())
    pixels, labels = torch.rand(40, 3, 16, 16), torch.arange(40) % 4
    train(network, pixels, labels, recipe, torch.Generator().manual_seed(2))
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    return layout.vector(network.state_dict()) - before


def test_the_update_is_nearly_that_of_float32() -> None:
    whole, half = update(RECIPE), update(replace(RECIPE, precision="bf16"))
    assert not torch.equal(whole, half)
    assert cosine_similarity(whole, half, dim=0) > 0.98


def test_hardware_without_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": False})
    check_precision("float32", CPU)
    with pytest.raises(UserError, match=r"client\.precision = bf16: this CPU .* has no bfloat16; use float32"):
        check_precision("bf16", CPU)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(UserError, match="this GPU"):
        check_precision("bf16", torch.device("cuda"))


def test_clients_train_in_it_and_the_server_evaluates_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    one, two = (run(tiny(tmp_path, name, **{"client.precision": name})) for name in ("float32", "bf16"))
    assert model_sha(one) != model_sha(two)
