"""First on PYTHONPATH of a test's node, THISTLE_ODD says how that node differs from Flower's and ours.

ahead     its clock is 20 s ahead          stingy    announces replies to training, never uploads them
hostile   its clients send the replies of tests/hostile.py, one kind each (to a node that is cold)
spoilt    one of its clients hangs, another wants more memory than the node may take
"""

import os
import sys
from importlib import import_module
from pathlib import Path

PROGRAMS = {
    "ahead": ["flower-supernode"],
    "stingy": ["flower-supernode"],
    "hostile": ["flwr-clientapp"],
    "hostile_buffers": ["flwr-clientapp"],
    "spoilt": ["flower-superexec", "fork_server.py"],
}

odd = os.environ.get("THISTLE_ODD", "")
if odd and any(Path(word).name in PROGRAMS[odd] for word in sys.orig_argv[:4]):
    import_module(f"tests.deploy.odd.{odd}").act()
