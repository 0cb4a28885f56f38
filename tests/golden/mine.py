"""A model of the user's own with batch norm and dropout, for the recorded experiments."""

from torch import nn


def net(shape, classes):
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (height // 2) * (width // 2), 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(32, classes),
    )


def wide(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Work enough that the server cuts its batches into parts."""
    layers = [nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 144, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144 * 16, classes))
