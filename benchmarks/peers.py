"""The peers' venv: byzfl, pfl and geom_median (GPL: run here, never read) beside the same torch, away from ours.

`python benchmarks/peers.py` creates it (`.venv-peers`, or where PEERS_VENV points to) and prints its interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ("byzfl==0.0.11", "geom_median==0.1.0", "pfl==0.6.0", "torch==2.13.0", "torchvision==0.28.0")
ROOT = Path(__file__).parents[1]


def interpreter() -> Path | None:
    """The peers' Python, installed now if need be; None, with a message, where that is not possible."""
    folder = Path(os.environ.get("PEERS_VENV") or ROOT / ".venv-peers")
    python = folder / "bin" / "python"
    if not _has_peers(python):
        print(f"peers: installing {', '.join(PACKAGES)} into {folder} (a minute or two)", file=sys.stderr)
        steps = ([sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", *PACKAGES])
        for step in steps:
            done = subprocess.run(step, check=False, capture_output=True, text=True)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no message"])[-1]
                print(f"peers: skipped, they cannot be installed here: {why}", file=sys.stderr)
                return None
    return python


def _has_peers(python: Path) -> bool:
    if not python.exists():
        return False
    look = (
        "import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, ('byzfl', 'geom_median', 'pfl', 'torch'))))"
    )
    return subprocess.run([str(python), "-c", look], check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    found = interpreter()
    print(found or "no peers")
    sys.exit(found is None)
