"""prepare.py DIR: data of three hospitals and of the server, in the forms in which yours may be.

Scikit-learn's handwritten digits stand in for scans: small, on every machine, and yours to replace.

DIR/north.npz     arrays x_train, y_train          DIR/south.npz   the same
DIR/east/         images, one folder per class     DIR/server.npz  the server's own few, and the test set
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HOSPITALS = ("north", "south", "east")
EACH, SERVER = 400, 100


def main(folder: Path) -> None:
    """Each hospital has 400 images, the server 100 of its own and 497 to test with; nobody shares images."""
    digits = load_digits()
    images, labels = (digits.images * (255 / 16)).astype(np.uint8), digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    folder.mkdir(parents=True, exist_ok=True)
    parts = np.split(order, [EACH, 2 * EACH, 3 * EACH, 3 * EACH + SERVER])
    for name, part in zip(HOSPITALS[:2], parts, strict=False):
        np.savez(folder / f"{name}.npz", x_train=images[part], y_train=labels[part])
    write_images(folder / "east", images[parts[2]], labels[parts[2]])
    own, test = parts[3], parts[4]
    np.savez(
        folder / "server.npz",
        x_train=images[own],
        y_train=labels[own],
        x_test=images[test],
        y_test=labels[test],
    )
    print(f"{', '.join(HOSPITALS)}: {EACH} images each; server.npz: {len(own)} of its own, {len(test)} to test with")


def write_images(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """train/<class>/<number>.png"""
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / "train" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:04}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
