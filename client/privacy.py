"""What a client does to its update before anybody sees it: clip it, and add noise.

With noise the reply reveals nothing else about its data: no loss, no number of examples, no batch-norm statistics.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import nn

from thistle.experiments.errors import UserError
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import Client
from thistle.protocol.layout import Layout, State


def privatise(client: Client, model: nn.Module, sent: State, rng: torch.Generator) -> State:
    """x_t + clip(x_i − x_t) + N(0, (z·S)²)."""
    layout, state = Layout.of(model), model.state_dict()
    if layout.buffers and client.local_noise:
        raise UserError(
            f"client.local-noise = {client.local_noise:g}: no noise covers {layout.buffers[0].name} of the model; "
            "choose one without batch norm, such as mlp"
        )
    start = layout.vector(sent)
    update = torch.renorm((layout.vector(state) - start)[None], 2, 0, client.local_bound)[0]
    noise = torch.randn(len(update), generator=rng) * (client.local_noise * client.local_bound)
    return layout.state(start + update + noise, state)


def silent(client: Client, numbers: dict[str, Any]) -> dict[str, Any]:
    """What else a reply says."""
    return {"num_examples": 1, "loss": 0.0} if client.local_noise else numbers


def noise_rng(seed: int, simulated: bool, *where: int) -> torch.Generator:
    """Repeatable in a simulation; on a real node fresh, so that no one can guess it."""
    if simulated:
        return torch_rng(seed, "local-noise", *where)
    return torch.Generator().manual_seed(secrets.randbits(63))
