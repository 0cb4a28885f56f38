"""The part of Helm's template language that our chart uses, so that it can be rendered where helm is not installed.

if, range, end, fields, `.Values`, `$`, strings, printf, and the filters quote, default, toYaml and nindent; anything
else is an error, so that the chart cannot grow beyond what is tested.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

_TAG = re.compile(r"(?P<left>\s*\{\{-|\{\{)\s*(?P<code>.*?)\s*(?P<right>-\}\}\s*|\}\})", re.DOTALL)
_WORD = re.compile(r'"[^"]*"|\([^()]*\)|[^\s()]+')


def render(text: str, values: dict[str, Any]) -> str:
    """The template with these top-level values (`Values`, `Release`)."""
    parts, end = _block(list(_pieces(text)), 0)
    assert end is None, "an end too many, or too few"
    return _fill(parts, values, values)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Text, and code between braces."""
    place = 0
    for tag in _TAG.finditer(text):
        yield False, text[place : tag.start()]
        yield True, tag["code"]
        place = tag.end()
    yield False, text[place:]


def _block(pieces: list[tuple[bool, str]], place: int) -> tuple[list[Any], int | None]:
    """A tree of texts, expressions and (keyword, condition, body), up to its `end`."""
    parts: list[Any] = []
    while place < len(pieces):
        is_code, text = pieces[place]
        place += 1
        keyword, _, rest = text.partition(" ")
        if is_code and keyword == "end":
            return parts, place
        if is_code and keyword in ("if", "range"):
            body, after = _block(pieces, place)
            assert after is not None, f"no end of {text}"
            place = after
            parts.append((keyword, rest, body))
        else:
            parts.append(("value", text, []) if is_code else text)
    return parts, None


def _fill(parts: list[Any], dot: Any, root: dict[str, Any]) -> str:
    made = []
    for part in parts:
        if isinstance(part, str):
            made.append(part)
            continue
        keyword, code, body = part
        value = _pipe(code, dot, root)
        if keyword == "range":
            made += [_fill(body, item, root) for item in value or []]
        elif keyword == "if":
            made.append(_fill(body, dot, root) if value else "")
        else:
            made.append(str(value))
    return "".join(made)


def _pipe(code: str, dot: Any, root: dict[str, Any]) -> Any:
    steps = [_WORD.findall(step) for step in code.split("|")] if "(" not in code else _outer_pipe(code)
    value = _call(steps[0], [], dot, root)
    for words in steps[1:]:
        value = _call(words, [value], dot, root)
    return value


def _outer_pipe(code: str) -> list[list[str]]:
    """Pipes outside of parentheses only."""
    steps: list[list[str]] = [[]]
    for word in _WORD.findall(code):
        steps.append([]) if word == "|" else steps[-1].append(word)
    return steps


def _call(words: list[str], piped: list[Any], dot: Any, root: dict[str, Any]) -> Any:
    name, arguments = words[0], [_word(word, dot, root) for word in words[1:]]
    match name, [*arguments, *piped]:
        case "quote", [value]:
            return json.dumps(str(value))
        case "default", [usual, value]:
            return value or usual
        case "toYaml", [value]:
            return yaml.safe_dump(value).strip()
        case "nindent", [count, value]:
            return "\n" + textwrap.indent(value, " " * int(count))
        case "printf", [pattern, *rest]:
            return pattern % tuple(rest)
        case _, []:
            return _word(name, dot, root)
    raise AssertionError(f"{words}: not in the part of the language that is known here")


def _word(word: str, dot: Any, root: dict[str, Any]) -> Any:
    if word.startswith("("):
        return _pipe(word[1:-1], dot, root)
    if word.startswith('"'):
        return word[1:-1]
    if word.isdigit():
        return int(word)
    assert word.startswith((".", "$.")), f"{word}: not known here"
    value = root if word.startswith("$") else dot
    for field in word.lstrip("$").split("."):
        if field:
            value = value.get(field) if isinstance(value, dict) else None
    return value
