"""Model, data and training, as the quickstart has them: a plain module, a DataLoader, one optimiser per client."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    """Thistle's `cnn-cifar` without dropout: Conv 32, pool, Conv 64, pool, dense 128, dense 10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * 8 * 8, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


@lru_cache(maxsize=1)
def arrays(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All images, all labels, and which of them each client holds; opened once a process."""
    return tuple(np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("pixels", "labels", "shares"))  # type: ignore[return-value]


class Partition(Dataset):
    """One client's images, each turned into a tensor in [0, 1] when it is asked for."""

    def __init__(self, folder: str, client: int) -> None:
        pixels, labels, shares = arrays(folder)
        self.pixels, self.labels = pixels[shares[client]], labels[shares[client]]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.pixels[index]).float().div(255), int(self.labels[index])


def load_data(folder: str, client: int, batch_size: int) -> DataLoader:
    return DataLoader(Partition(folder, client), batch_size=batch_size, shuffle=True)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float, device: torch.device) -> float:
    """Plain SGD; the mean of the batches' losses."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running += loss.item()
    return running / (epochs * len(loader))
