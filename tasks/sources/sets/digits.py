"""scikit-learn's 8×8 digits: no download, trained in seconds."""

from __future__ import annotations

import numpy as np

from thistle.experiments.extras import require
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.registry import SOURCES, Found, Wanted
from thistle.tasks.stratified import stratified_always

TEST = 297  # of 1 797


@SOURCES.add("digits", "scikit-learn's 8×8 digits, embedded: 1 500 to train, 297 to test", "Alpaydin & Kaynak 1998")
def digits(wanted: Wanted) -> Found:
    """They are part of scikit-learn, and never change."""
    return Found("digits", _read, "digits")


def _read(work: Workspace) -> tuple[str, ...]:
    require("sklearn")
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    test = np.zeros(len(pixels), dtype=bool)
    test[stratified_always(digits.target, TEST)] = True
    work.put("train", pixels[~test], digits.target[~test])
    work.put("test", pixels[test], digits.target[test])
    return tuple("0123456789")
