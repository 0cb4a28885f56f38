"""The import table between rooms, as the design has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "flower_compat": {"protocol"},
    "experiments": {"protocol"},
    "tasks": {"protocol", "experiments"},
    "attacks": {"strategies", "tasks", "protocol", "experiments"},
    "strategies": {"tasks", "protocol", "experiments"},
    "client": {"flower_compat", "attacks", "tasks", "protocol", "experiments"},
    "server": {"flower_compat", "strategies", "attacks", "tasks", "protocol", "experiments"},
}
INSIDE = {"flower_compat": "thistle/flower_compat"}
"""Rooms that are not a folder at the top."""


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports from; the front door itself counts as the room `thistle`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "thistle":
                names = [f"thistle.{alias.name}" for alias in node.names]
        parts = [name.split(".") for name in names]
        bare = {part[0] for part in parts} & MAY_IMPORT.keys()
        assert not bare, f"{path}: write thistle.{bare.pop()}"
        inside = {part[1] if len(part) > 1 else "" for part in parts if part[0] == "thistle"}
        found |= {name if name in MAY_IMPORT else "thistle" for name in inside}
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    files = list((ROOT / INSIDE.get(room, room)).rglob("*.py"))
    assert files
    for path in files:
        assert imported_rooms(path) <= MAY_IMPORT[room] | {room}, path


def test_nobody_imports_a_room_without_its_namespace() -> None:
    for folder in ("thistle", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            imported_rooms(path)


def test_the_table_is_read_from_real_imports() -> None:
    assert imported_rooms(ROOT / "client" / "honest.py") == {"client", "protocol"}
    assert imported_rooms(ROOT / "thistle" / "cli.py") == {"experiments", "thistle"}
