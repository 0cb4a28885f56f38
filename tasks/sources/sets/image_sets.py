"""The image sets that torchvision reads: an entry each."""

from __future__ import annotations

from thistle.tasks.sources.registry import SOURCES
from thistle.tasks.sources.vision import ImageSet


def _idx(folder: str, train: str, test: str) -> tuple[str, ...]:
    return tuple(f"{folder}/raw/{p}-{w}-ubyte" for p in (train, test) for w in ("images-idx3", "labels-idx1"))


def _below(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


SOURCES.add("mnist", "handwritten digits, 28×28", "LeCun et al. 1998")(
    ImageSet("MNIST", _idx("MNIST", "train", "t10k"))
)

SOURCES.add("fashion-mnist", "clothes, 28×28", "Xiao et al. 2017")(
    ImageSet("FashionMNIST", _idx("FashionMNIST", "train", "t10k"))
)

SOURCES.add("emnist", "EMNIST balanced: digits and letters, 28×28, 47 classes", "Cohen et al. 2017")(
    ImageSet(
        "EMNIST",
        _idx("EMNIST", "emnist-balanced-train", "emnist-balanced-test"),
        options={"split": "balanced"},
        on_its_side=True,
    )
)

SOURCES.add("cifar10", "objects and animals in colour, 32×32", "Krizhevsky 2009")(
    ImageSet(
        "CIFAR10",
        _below("cifar-10-batches-py", "batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))),
        archive="cifar-10-python.tar.gz",
    )
)

SOURCES.add("cifar100", "objects and animals in colour, 32×32, 100 classes", "Krizhevsky 2009")(
    ImageSet("CIFAR100", _below("cifar-100-python", "meta", "test", "train"), archive="cifar-100-python.tar.gz")
)

SOURCES.add("svhn", "house numbers in colour, 32×32", "Netzer et al. 2011")(
    ImageSet("SVHN", ("train_32x32.mat", "test_32x32.mat"), by_split=True, channels_first=True)
)
