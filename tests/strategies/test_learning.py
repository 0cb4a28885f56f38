"""The server's own data: its gradient against autograd in double precision, its SGD against loops written out here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from thistle.protocol.layout import Layout, State
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps import ServerLearning, learning
from thistle.strategies.steps.learning import ServerData, ServerRound

COUNT, CLASSES, SHAPE = 23, 4, (2, 3, 3)
INPUTS = 18


def softmax_regression() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, CLASSES))


def normed() -> nn.Module:
    """Convolution, batch norm, dropout; the buffers stand among the parameters. Channels last, as in earnest."""
    layers = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(layers, nn.Flatten(), nn.Linear(45, CLASSES)).to(memory_format=torch.channels_last)


def server(make: Callable[[], nn.Module], number: int = 1, **more: Any) -> ServerRound:
    """A round's server with a random model, data and (positive) running statistics."""
    torch.manual_seed(5)
    network = make()
    sent = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for name, tensor in sent.items():
        if "running" in name:
            tensor.uniform_(0.5, 2.0)
    settings = {"epochs": 3, "batch_size": 1000, "weight_decay": 0.1, "seed": 0, **more}
    pixels, labels = torch.rand(COUNT, *SHAPE), torch.randint(CLASSES, (COUNT,))
    with torch.no_grad():  # what the network happens to hold must not matter
        for parameter in network.parameters():
            parameter.zero_()
    return ServerRound(ServerData(network, Layout.of(network), pixels, labels, **settings), number, sent)


def start_of(server: ServerRound) -> Tensor:
    return server.data.layout.vector(server.sent)


def ref_gradient(make: Callable[[], nn.Module], server: ServerRound) -> np.ndarray:
    """∇f0 at the model that was sent: double precision, eval mode, all data at once."""
    model = make().double().eval()
    model.load_state_dict({name: t.double() if t.is_floating_point() else t for name, t in server.sent.items()})
    data = server.data
    nn.functional.cross_entropy(model(data.inputs.double()), data.labels).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return np.concatenate([gradients[entry.name].numpy().ravel() for entry in data.layout.trained])


@pytest.mark.parametrize("make", [softmax_regression, mlp, dropping, normed])
def test_the_gradient_is_that_of_the_whole_set(make: Callable[[], nn.Module]) -> None:
    one = server(make)
    expected = ref_gradient(make, one)
    actual = one.gradient()
    assert actual.shape == (one.data.layout.size,) and actual.dtype == torch.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("chunk", [1, 7, 22, 23])
def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    whole = server(normed).gradient()
    monkeypatch.setattr(learning, "CHUNK", chunk)
    np.testing.assert_allclose(server(normed).gradient(), whole, rtol=1e-5, atol=1e-6 * float(whole.abs().max()))


def test_the_gradient_knows_no_weight_decay_and_no_round() -> None:
    assert torch.equal(server(mlp, weight_decay=0.0).gradient(), server(mlp, number=9, weight_decay=5.0).gradient())


def softmax_sgd(server: ServerRound, start: Tensor, lr: float, gamma: float, decay: float, epochs: int) -> np.ndarray:
    """W ← W − lr·γ(∇f0 + decay·W), all data in every step, for softmax regression."""
    x = server.data.inputs.double().reshape(COUNT, -1).numpy()
    wanted = np.eye(CLASSES)[server.data.labels.numpy()]
    flat = start.double().numpy().copy()
    for _ in range(epochs):
        weight, bias = flat[:-CLASSES].reshape(CLASSES, INPUTS), flat[-CLASSES:]
        logits = x @ weight.T + bias
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        error = (chances - wanted) / COUNT
        gradient = np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])
        flat -= lr * gamma * (gradient + decay * flat)
    return flat


@pytest.mark.parametrize(("decay", "epochs"), [(0.0, 1), (0.1, 1), (0.1, 5)])
def test_learning_is_sgd(decay: float, epochs: int) -> None:
    one = server(softmax_regression, weight_decay=decay, epochs=epochs)
    start = start_of(one) + 0.1
    expected = softmax_sgd(one, start, 0.3, 1.0, decay, epochs)
    np.testing.assert_allclose(one.learn(start, 0.3), expected, rtol=1e-5, atol=1e-6)


def test_gamma_scales_the_loss_and_the_weight_decay() -> None:
    one = server(softmax_regression)
    model = start_of(one)
    step = torch.linspace(-0.2, 0.2, len(model))
    given = Round(1, (0,), torch.ones(1, dtype=torch.float64), model, 0.3, one)
    before = Progress.begin(torch.zeros(1, len(model)))
    before = type(before)(before.updates, before.kept, step)
    after = ServerLearning(0.25, 0.0)(given, before)
    expected = softmax_sgd(one, model + step, 0.3, 0.25, 0.1, 3)
    np.testing.assert_allclose(model + after.step, expected, rtol=1e-5, atol=1e-6)


def test_learning_in_several_layers() -> None:
    one = server(mlp)
    start = start_of(one)
    model = mlp().double()
    layout = one.data.layout
    model.load_state_dict({k: v.double() for k, v in layout.state(start, {}).items()})
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(one.data.inputs.double()), one.data.labels)
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.5 * (gradient + 0.1 * parameter.data)
    np.testing.assert_allclose(one.learn(start, 0.5), layout.vector(model.state_dict()), rtol=1e-5, atol=1e-6)


def test_every_image_once_an_epoch_in_batches() -> None:
    """With a rate so small that the model hardly moves, an epoch's steps add up to the whole set's gradient."""
    one = server(softmax_regression, epochs=1, batch_size=1, weight_decay=0.0)
    start = start_of(one).zero_()
    moved = (one.learn(start, 1e-4) - start) / -1e-4
    whole = softmax_sgd(one, start, 1.0, 1.0, 0.0, 1)
    np.testing.assert_allclose(moved / COUNT, -whole, atol=1e-3)


@pytest.mark.parametrize("make", [dropping, normed])
def test_learning_is_a_function_of_seed_and_round(make: Callable[[], nn.Module]) -> None:
    def learnt(number: int, seed: int) -> Tensor:
        torch.rand(number)  # what others drew before does not matter
        one = server(make, number, seed=seed, batch_size=6)
        return one.learn(start_of(one), 0.1)

    assert torch.equal(learnt(1, 0), learnt(1, 0))
    assert not torch.equal(learnt(1, 0), learnt(2, 0))
    assert not torch.equal(learnt(1, 0), learnt(1, 1))


def test_dropout_acts_while_learning() -> None:
    def learnt(make: Callable[[], nn.Module], number: int) -> Tensor:
        one = server(make, number)  # one batch: only dropout can tell rounds apart
        return one.learn(start_of(one), 0.1)

    assert torch.allclose(learnt(mlp, 1), learnt(mlp, 2), atol=1e-6)
    assert not torch.allclose(learnt(dropping, 1), learnt(dropping, 2), atol=1e-4)


def test_batch_norm_statistics_stay_as_they_were_sent() -> None:
    one = server(normed, batch_size=6)
    sent = copy.deepcopy(one.sent)
    first, start = one.gradient(), start_of(one)
    kept = start.clone()
    learnt = one.learn(start, 0.1)
    assert same(one.sent, sent) and torch.equal(start, kept)
    again = ServerRound(one.data, one.number, one.sent)
    assert torch.equal(again.gradient(), first), "the statistics that learning moved are not those of g0"
    assert torch.equal(again.learn(start, 0.1), learnt), "nor those of the next learning"
    statistics = {name: one.data.network.state_dict()[name] for name in sent if "running" in name}
    ServerRound(one.data, one.number, one.sent).gradient()
    assert all(torch.equal(tensor, sent[name]) for name, tensor in statistics.items())


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
