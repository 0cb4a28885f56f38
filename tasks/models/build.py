"""From an experiment's `model.name` to a network with its initial weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.plugins import is_own, make_own, wrong_result
from thistle.experiments.randomness import ONE_AT_A_TIME, seed_for
from thistle.protocol.text import last_line
from thistle.tasks.dataset import Shape
from thistle.tasks.models.layers import fit_network
from thistle.tasks.models.registry import MODELS, Dropout, takes

KEY = "model.name"


def check_model(name: str) -> None:
    """Refuse a name that is neither one of ours nor the user's own, and suggest the nearest."""
    if not is_own(name):
        MODELS.find(name, KEY)


def build_model(model: settings.Model, shape: Shape, classes: int, seed: int) -> nn.Module:
    """The network with its initial weights, a function of the seed alone; channels last, as training wants it."""
    check_model(model.name)

    def dropout(rate: float) -> nn.Module:
        own = rate if model.dropout is True else float(model.dropout)
        return nn.Dropout(own) if own > 0 else nn.Identity()

    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))
        network = _own(model, shape, classes) if is_own(model.name) else _named(model.name, shape, classes, dropout)
        if isinstance(model, settings.Network):
            network = fit_network(network, model)
    if any(parameter.ndim == 5 for parameter in network.parameters()):  # a volume's, which torch would refuse
        return network
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _named(name: str, shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    if not takes(name, shape):
        raise UserError(
            f"model.name = {name}: takes images; the task's inputs are {_sides(shape)}: use mlp, logistic or cnn1d"
        )
    try:
        return MODELS[name](shape, classes, dropout)
    except RuntimeError as error:  # torch's, where a layer has nothing left to look at
        size = "×".join(map(str, shape[1:]))
        raise UserError(f"model.name = {name}: the task's images of {size} are too small for it; try mlp") from error


def _own(model: settings.Model, shape: Shape, classes: int) -> nn.Module:
    """What the user's factory makes of (shape, classes): a network from images to logits."""
    key, name = KEY, model.name
    if model.dropout is not True:
        raise UserError(f"model.dropout = {model.dropout}: {name} sets its own dropout; leave it true")
    network = make_own(name, key, shape, classes)
    if not isinstance(network, nn.Module):
        raise wrong_result(name, key, "a torch.nn.Module", network)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"{key} = {name!r}: the network has no parameters to train")
    names = dict(network.named_parameters())
    tied = [other for other, _ in network.named_parameters(remove_duplicate=False) if other not in names]
    if tied:
        raise UserError(f"{key} = {name!r}: {tied[0]} shares its values with another parameter, which is not supported")
    trained = network.training
    try:
        with torch.no_grad():
            logits = network.eval()(torch.zeros(2, *shape))
    except Exception as error:
        reason = last_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{key} = {name!r}: the network cannot see inputs of {_sides(shape)}: {reason}") from None
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        got = f"a tensor of {_sides(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"{key} = {name!r}: two inputs should give logits of 2×{classes}, not {got}")
    return network.train(trained)


def _sides(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def predict(model: nn.Module, pixels: Tensor) -> Tensor:
    """What the model says of these inputs; images go in with their channels last, losses are for whole precision."""
    images = pixels.ndim == 4
    outputs: Tensor = model(pixels.contiguous(memory_format=torch.channels_last) if images else pixels)
    return outputs.float() if outputs.dtype == torch.bfloat16 else outputs
