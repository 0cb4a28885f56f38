"""The networks. Each is built for a task's image shape and number of classes; inputs are in [0, 1]."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.plugins import is_own, make_own, wrong_result
from thistle.experiments.randomness import seed_for
from thistle.protocol.text import last_line
from thistle.tasks.layers import fit_network

Shape = tuple[int, int, int]
Builder = Callable[[Shape, int, Callable[[float], nn.Module]], nn.Module]


def _conv(inputs: int, outputs: int, padding: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.ReLU()]


def _finish(features: list[nn.Module], shape: Shape, head: Callable[[int], list[nn.Module]]) -> nn.Sequential:
    """Convolutions, then the layers that `head` makes for their flattened width."""
    with torch.no_grad():
        width = nn.Sequential(*features).eval()(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*features, nn.Flatten(), *head(width))


def _two_dense(classes: int, dropout: Callable[[float], nn.Module]) -> Callable[[int], list[nn.Module]]:
    return lambda width: [nn.Linear(width, 128), nn.ReLU(), dropout(0.5), nn.Linear(128, classes)]


def cnn_emnist(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """RoFSL's EMNIST network: Conv 32, Conv 64, pool, dropout .25, dense 128, dropout .5, dense."""
    features = [*_conv(shape[0], 32), *_conv(32, 64), nn.MaxPool2d(2), dropout(0.25)]
    return _finish(features, shape, _two_dense(classes, dropout))


def cnn_cifar(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """RoFSL's CIFAR network: Conv 32, pool, Conv 64, pool, dropout .25, dense 128, dropout .5, dense."""
    features = [*_conv(shape[0], 32), nn.MaxPool2d(2), *_conv(32, 64), nn.MaxPool2d(2), dropout(0.25)]
    return _finish(features, shape, _two_dense(classes, dropout))


def cnn_calfat(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """CalFAT's network: three convolutions of 128 without padding, two pools, one linear layer."""
    if min(shape[1:]) < 18:
        raise UserError(
            f"model.name = cnn-calfat: needs images of at least 18×18, the task's are {shape[1]}×{shape[2]}"
        )
    pool = nn.MaxPool2d(2)
    features = [*_conv(shape[0], 128, 0), pool, *_conv(128, 128, 0), pool, *_conv(128, 128, 0)]
    return _finish(features, shape, lambda width: [dropout(0.0), nn.Linear(width, classes)])


def vgg8(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """Five convolutions with batch norm (64 to 512 wide), a pool after each while there is something to pool."""

    def blocks() -> Iterator[nn.Module]:
        inputs, side = shape[0], min(shape[1:])
        for outputs in (64, 128, 256, 512, 512):
            yield from (nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
            if side >= 4:
                yield nn.MaxPool2d(2)
                side //= 2
            inputs = outputs
        yield nn.AdaptiveAvgPool2d(1)

    return _finish(list(blocks()), shape, lambda width: [dropout(0.5), nn.Linear(width, classes)])


def resnet18(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """torchvision's ResNet-18, fitted to small images: a 3×3 first convolution, no first pool."""
    from thistle.tasks.vision import torchvision

    model: nn.Module = torchvision().models.resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def mlp(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """Two hidden layers of 200."""
    inputs = shape[0] * shape[1] * shape[2]
    hidden = [nn.Linear(inputs, 200), nn.ReLU(), dropout(0.0), nn.Linear(200, 200), nn.ReLU(), dropout(0.0)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, classes))


def auto(shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    """The EMNIST layout for grey images, the CIFAR layout for coloured ones."""
    return (cnn_emnist if shape[0] == 1 else cnn_cifar)(shape, classes, dropout)


MODELS: dict[str, Builder] = {
    "auto": auto,
    "cnn-emnist": cnn_emnist,
    "cnn-cifar": cnn_cifar,
    "cnn-calfat": cnn_calfat,
    "vgg8": vgg8,
    "resnet18": resnet18,
    "mlp": mlp,
}


def check_model(name: str) -> None:
    """Refuse a name that is not in the table, naming the nearest."""
    if name not in MODELS and not is_own(name):
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)
        raise UserError(f"model.name = {name!r}: no such model; did you mean {near[0]}? ({', '.join(MODELS)})")


def build_model(model: settings.Model, shape: Shape, classes: int, seed: int) -> nn.Module:
    """The network with its initial weights, a function of the seed alone; channels last, as training wants it."""
    check_model(model.name)

    def dropout(rate: float) -> nn.Module:
        own = rate if model.dropout is True else float(model.dropout)
        return nn.Dropout(own) if own > 0 else nn.Identity()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))
        network = _own(model, shape, classes) if is_own(model.name) else _of_table(model.name, shape, classes, dropout)
        if isinstance(model, settings.Network):
            network = fit_network(network, model)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _of_table(name: str, shape: Shape, classes: int, dropout: Callable[[float], nn.Module]) -> nn.Module:
    try:
        return MODELS[name](shape, classes, dropout)
    except RuntimeError as error:  # torch's, where a layer has nothing left to look at
        size = "×".join(map(str, shape[1:]))
        raise UserError(f"model.name = {name}: the task's images of {size} are too small for it; try mlp") from error


def _own(model: settings.Model, shape: Shape, classes: int) -> nn.Module:
    """What the user's factory makes of (shape, classes): a network from images to logits."""
    key, name = "model.name", model.name
    if model.dropout is not True:
        raise UserError(f"model.dropout = {model.dropout}: {name} has the dropout that you gave it; leave it true")
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
        raise UserError(f"{key} = {name!r}: the network cannot see images of {_sides(shape)}: {reason}") from None
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        got = f"a tensor of {_sides(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"{key} = {name!r}: two images should give logits of 2×{classes}, not {got}")
    return network.train(trained)


def _sides(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def predict(model: nn.Module, pixels: Tensor) -> Tensor:
    """What the model says of these inputs; images go in with their channels last."""
    images = pixels.ndim == 4
    outputs: Tensor = model(pixels.contiguous(memory_format=torch.channels_last) if images else pixels)
    return outputs
