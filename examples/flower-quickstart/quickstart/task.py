"""Model, data and training: plain PyTorch."""

from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small CNN for 8×8 images."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


@cache
def load_all():
    """All 1797 images in [0, 1] and their labels, shuffled once."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(42))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(digits.target)[order]


def load_data(partition_id, num_partitions, batch_size=32):
    """One node's training and validation images, of the first 1400."""
    images, labels = (part[:1400][partition_id::num_partitions] for part in load_all())
    cut = int(0.8 * len(labels))
    train = TensorDataset(images[:cut], labels[:cut])
    validation = TensorDataset(images[cut:], labels[cut:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(validation, batch_size)


def load_test_data(batch_size=128):
    """Images that no node has."""
    images, labels = load_all()
    return DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size)


def train(net, loader, epochs, lr):
    """Train the model; returns the mean loss of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    """Mean loss and accuracy of the model."""
    net.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            right += (outputs.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)
