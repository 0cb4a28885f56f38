"""The import table between rooms, as the design has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "exchange": set(),
    "tasks": {"exchange"},
    "attacks": {"tasks", "exchange"},
    "strategies": {"tasks", "exchange"},
    "client": {"attacks", "tasks", "exchange"},
    "server": {"strategies", "attacks", "tasks", "exchange"},
    "thistle": {"exchange", "tasks", "attacks", "strategies", "client", "server"},
}


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        found |= {name.partition(".")[0] for name in names}
    return found & MAY_IMPORT.keys()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        assert imported_rooms(path) <= MAY_IMPORT[room] | {room}, path


def test_the_table_is_read_from_real_imports() -> None:
    assert imported_rooms(ROOT / "client" / "honest.py") == {"client"}
