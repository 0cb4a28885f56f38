"""Types in words: "whole number ≥ 1", "number from 0 to below 1", "`auto` or `off`"."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

LARGEST = 2**63
"""Of Flower's whole numbers: a bound that nobody needs to be told."""
NUMBERS = {int: "whole number", float: "number"}
OTHERS = {type(None): "nothing", bool: "boolean", str: "text"}


def in_words(annotation: Any) -> str:
    """Which values this type allows."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return ", or ".join(in_words(one) for one in get_args(annotation))
    if origin is Literal:
        return either([f"`{value}`" for value in get_args(annotation)])
    plain, *notes = get_args(annotation) if origin is Annotated else (annotation,)
    if plain in NUMBERS:
        return f"{NUMBERS[plain]}{_range(dict(_bounds(notes)))}"
    return OTHERS[plain] if plain in OTHERS else in_words(plain)


def either(names: list[str]) -> str:
    """`a`, `b` or `c`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _bounds(notes: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """("ge", 0), ("lt", 1) and similar pairs, from a type's annotations."""
    for note in notes:
        if isinstance(note, FieldInfo):
            yield from _bounds(note.metadata)
        for kind in ("ge", "gt", "le", "lt"):
            bound = getattr(note, kind, None)
            if bound is not None and bound != LARGEST:
                yield kind, bound


def _range(bounds: dict[str, float]) -> str:
    shown = {kind: f"{bound:g}".replace("-", "−") for kind, bound in bounds.items()}
    match shown:
        case {"ge": low, "le": high}:
            return f" from {low} to {high}"
        case {"ge": low, "lt": high}:
            return f" from {low} to below {high}"
        case {"gt": low, "le": high}:
            return f" above {low}, up to {high}"
        case {"gt": low, "lt": high}:
            return f" above {low} and below {high}"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return "".join(f" {signs[kind]} {bound}" for kind, bound in shown.items())
