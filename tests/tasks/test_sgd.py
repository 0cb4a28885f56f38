"""Our SGD against torch's: the same bits."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from thistle.tasks.training import SGD, Recipe


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_it_is_torchs_to_the_last_bit(momentum: float, decay: float) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 36, 5))
    theirs = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 36, 5))
    theirs.load_state_dict(ours.state_dict())
    recipe = Recipe(1, 4, 0.1, momentum=momentum, weight_decay=decay)
    one = SGD(list(ours.parameters()), recipe)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=decay, foreach=True)
    for _ in range(5):
        pixels, labels = torch.rand(4, 1, 8, 8), torch.randint(5, (4,))
        other.zero_grad()
        for model in (ours, theirs):
            nn.functional.cross_entropy(model(pixels), labels).backward()
        one.step()
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    unused = nn.Parameter(torch.ones(3))
    SGD([unused], Recipe(1, 1, 0.1, weight_decay=1.0)).step()
    assert torch.equal(unused, torch.ones(3))


def test_a_client_that_trains_does_not_load_torchs_compiler() -> None:
    code = """
import sys, torch
from thistle.tasks.training import Recipe, train
from thistle.tasks.models import build_model
from thistle.experiments.settings import Model
model = build_model(Model(name="cnn-emnist"), (1, 8, 8), 10, 0)
train(model, torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64), Recipe(1, 2, 0.1), torch.Generator())
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
