"""python -m thistle.deploy.probe FOLDER: whether the server or node whose state is below it is well; for containers.

A program of its own that imports next to nothing, because it is run again and again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from thistle.deploy.health import all_answers


def main(folder: Path) -> int:
    """Exit code 0 only if there is something, and each of its processes answers."""
    found: dict[str, bool] = {}
    for about in folder.glob("*/server.json"):
        found |= all_answers(json.loads(about.read_bytes()))
    for name, up in found.items():
        print(f"{name}: {'up' if up else 'no answer'}")
    return 0 if found and all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
