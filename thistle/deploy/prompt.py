"""python -m thistle.deploy.prompt flower-supernode ARGUMENTS...: one that looks for messages more often than Flower's.

Nothing else is changed.
"""

from __future__ import annotations

from thistle.deploy.patient import become
from thistle.flower_compat.supernode_pace import hurry

if __name__ == "__main__":
    become(hurry)
