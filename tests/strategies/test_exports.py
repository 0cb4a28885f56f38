"""What `from thistle.strategies import …` gives: every strategy of ours, found by its class's name."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.serverapp.strategy import Strategy

import thistle.strategies
from thistle.strategies.registry import strategies

SOURCE = Path(__file__).resolve().parents[2] / "strategies" / "__init__.py"
OURS = {
    name: cls
    for name, cls in strategies().items()
    if cls.__module__.startswith("thistle.") and not name.startswith("flwr-")
}
TOOLS = {"Pipeline", "Weighted", "setting", "strategy"}
ALIASES = {"GeometricMedian": "RFA"}


def listed() -> dict[str, str]:
    """What type checkers and editors see: name → module."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("name", OURS)
def test_every_strategy_can_be_imported_from_the_room(name: str) -> None:
    cls = OURS[name]
    assert getattr(thistle.strategies, cls.__name__) is cls
    assert issubclass(cls, Strategy), "and is one of Flower's kind"
    assert cls.__name__ in dir(thistle.strategies)


def test_aliases_and_tools() -> None:
    for alias, name in ALIASES.items():
        assert getattr(thistle.strategies, alias) is getattr(thistle.strategies, name)
    assert all(callable(getattr(thistle.strategies, name)) for name in TOOLS)


def test_type_checkers_see_what_is_there() -> None:
    """The list of strategies/__init__.py is generated; at run time a new rule needs no line in it."""
    seen = listed()
    known = {cls.__name__ for cls in OURS.values()} | ALIASES.keys() | TOOLS
    assert seen.keys() == known, "make generate"
    for name, module in seen.items():
        assert getattr(importlib.import_module(module), name) is getattr(thistle.strategies, name)


def test_flowers_own_and_names_that_do_not_exist_are_not_there() -> None:
    for name in ("FlwrFedAvg", "RoFLS"):
        with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
            exec(f"from thistle.strategies import {name}")


def test_a_users_class_of_the_same_name_does_not_take_ours_place() -> None:
    script = """
from thistle.strategies import FedAvg, strategy
ours = FedAvg
@strategy("mine", "nobody")
class FedAvg(ours):
    "Mine."
from thistle.strategies import FedAvg as again
assert again is ours
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_room_is_light_until_a_class_is_asked_for() -> None:
    script = "import sys, thistle.strategies; print([n for n in ('torch', 'flwr', 'numpy') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout == b"[]\n"
