"""Things by name: what enters itself is listed and found, and nothing else has to know."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from thistle.experiments.errors import UserError
from thistle.experiments.registry import Registry


def colours() -> Registry[Callable[[], int]]:
    registry: Registry[Callable[[], int]] = Registry("colour")

    @registry.add("red", "like a tomato", "Newton 1704")
    def red() -> int:
        return 1

    @registry.add("green")
    def green() -> int:
        """Like grass
        in spring.

        More about it.
        """
        return 2

    return registry


def test_what_was_added_is_found_and_listed() -> None:
    registry = colours()
    assert registry["red"]() == 1 and registry.find("green", "paint.colour")() == 2
    assert list(registry) == ["red", "green"] and len(registry) == 2
    shown = [(name, entry.about, entry.paper) for name, entry in registry.entries().items()]
    assert shown == [("red", "like a tomato", "Newton 1704"), ("green", "Like grass in spring", "")]


def test_an_unknown_name_is_answered_by_the_nearest() -> None:
    with pytest.raises(UserError) as refused:
        colours().find("Gren", "paint.colour")
    assert str(refused.value) == "paint.colour = 'Gren': no such colour; did you mean green? (red, green)"


def test_two_of_one_name_are_a_mistake() -> None:
    registry = colours()
    with pytest.raises(ValueError, match="colour 'red': already exists: like a tomato"):
        registry.add("red", "like a rose")(lambda: 3)
    assert registry["red"]() == 1


def test_every_module_of_a_package_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "palette"
    (package / "warm").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from thistle.experiments.registry import Registry\nCOLOURS = Registry('colour', 'palette', order=str)\n"
    )
    (package / "warm" / "__init__.py").touch()
    entry = "from palette import COLOURS\nCOLOURS.add({0!r}, 'made for a test')({0!r})\n"
    (package / "violet.py").write_text(entry.format("violet"))
    (package / "warm" / "amber.py").write_text(entry.format("amber"))
    monkeypatch.syspath_prepend(tmp_path)
    import palette

    assert list(palette.COLOURS) == ["amber", "violet"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "palette"]:
        monkeypatch.delitem(sys.modules, name)
