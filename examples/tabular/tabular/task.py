"""Model, data and training: plain PyTorch."""

from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SERVER, TEST = 40, 129
"""Patients whose data the server holds, and those whom the model is tested on; no node has either."""


class Net(nn.Module):
    """30 features, two classes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.layers(x)


def make_net(seed):
    """A network with weights that depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


@cache
def load_all(seed):
    """All 569 patients, shuffled; features standardised by the server's patients, whose statistics all know."""
    bunch = load_breast_cancer()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed))
    x = torch.tensor(bunch.data, dtype=torch.float32)[order]
    x = (x - x[:SERVER].mean(0)) / x[:SERVER].std(0)
    return x, torch.tensor(bunch.target)[order]


def load_server_data(seed):
    """(features, classes) of the patients that the server knows."""
    return tuple(part[:SERVER] for part in load_all(seed))


def load_test_data(seed):
    """(features, classes) of the patients that nobody trains on."""
    return tuple(part[-TEST:] for part in load_all(seed))


def load_data(partition_id, num_partitions, seed):
    """One node's patients, in batches."""
    x, y = (part[SERVER:-TEST][partition_id::num_partitions] for part in load_all(seed))
    order = torch.Generator().manual_seed(1000 * seed + partition_id)
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=order)


def train(net, loader, epochs, lr):
    """Train the model; returns the mean loss of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def accuracy(net, x, y):
    """The share that the model gets right."""
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()
