"""Nobody else reaches below the public interface of Flower and Ray."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from thistle.experiments.plugins import ROOMS
from thistle.flower_compat.error_codes import ErrorCode

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ("flwr.app", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.clientapp")
"""What Flower documents for the authors of apps."""
COMPAT = ROOT / "thistle" / "flower_compat"


def reaches(path: Path) -> Iterator[str]:
    """What a file imports of Flower's and Ray's that is not for everybody, and private attributes of others."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name for name in names if name.split(".")[0] in ("flwr", "ray") and name not in PUBLIC)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls", "os")):
                yield f"{ast.unparse(owner)}.{node.attr}"
        if isinstance(node, ast.Attribute) and node.attr == "__dict__" and "metadata" in ast.unparse(node.value):
            yield ast.unparse(node)


@pytest.mark.parametrize("room", [*ROOMS, "thistle"])
def test_only_this_package_reaches_below(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        if COMPAT not in path.parents:
            assert not list(reaches(path)), path


def test_it_would_be_noticed() -> None:
    found = {reach for path in COMPAT.glob("*.py") for reach in reaches(path)}
    assert {"flwr.supercore.run", "ray", "http_retry._RETRYABLE_STATUS_CODES", "message.metadata.__dict__"} <= found


def test_flowers_error_codes() -> None:
    names = ("CLIENT_APP_RAISED_EXCEPTION", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE")
    assert len({getattr(ErrorCode, name) for name in names}) == 3
