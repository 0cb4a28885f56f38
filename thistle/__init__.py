"""Thistle: robust federated learning on Flower. The command line and the engines behind it.

import thistle
thistle.load("runs/digits-clean").predict(["seven.png"])
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thistle.trained import Trained

__all__ = ["load"]


def load(run: str | Path, out: str = "runs") -> Trained:
    """The trained model of a run, given by its folder or its name below `out`: see docs/guide.md."""
    from thistle.rooms import use_rooms

    use_rooms()
    from thistle.trained import load_trained

    return load_trained(run, out)
