"""Thistle: robust federated learning on Flower. The command line and the engines behind it.

import thistle
thistle.load("runs/digits-clean").predict(["seven.png"])
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thistle.server import Guarded
    from thistle.trained import Trained

__all__ = ["Guarded", "load"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""One thread per process: more give other bits, and on busy cores they cost time. Read when numpy is imported."""

_PACKAGE = Path(__file__).resolve().parent
if not (_PACKAGE / "protocol").is_dir():  # a checkout or a staged app: the rooms lie beside this folder
    __path__.append(str(_PACKAGE.parent))


def load(run: str | Path, out: str = "runs") -> Trained:
    """The trained model of a run, given by its folder or its name below `out`: see docs/guide.md."""
    from thistle.trained import load_trained

    return load_trained(run, out)


def __getattr__(name: str) -> object:
    """`thistle.Guarded`, imported on first use."""
    if name == "Guarded":
        from thistle.server import Guarded

        return Guarded
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
