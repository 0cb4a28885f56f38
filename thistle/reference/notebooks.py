"""Notebooks as pages of the site: their text, code and stored outputs as Markdown. `make docs` runs no notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def notebook_page(path: Path) -> str:
    """The whole notebook; pictures are in the page itself."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first, *rest = (part for cell in cells for part in _cell(cell))
    download = f"[Download this page as a notebook]({path.name}), with the outputs as they were when it last ran."
    return "\n\n".join([first, download, *rest]) + "\n"


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = _text(cell["source"])
    if cell["cell_type"] == "markdown":
        title, _, body = source.partition("\n")
        yield from (part for part in (title, body.strip()) if part)
        return
    yield f"```python\n{source}\n```"
    printed: list[str] = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data or "text/markdown" in data:
            yield from _fenced(printed)
            printed = []
            yield _shown(data)
        else:
            printed.append(_text(output.get("text") or data.get("text/plain", "")))
    yield from _fenced(printed)


def _shown(data: Mapping[str, Any]) -> str:
    if "image/png" in data:
        return f"![output](data:image/png;base64,{_text(data['image/png']).replace(chr(10), '')})"
    return re.sub(r"^#+ (.*)$", r"**\1**", _text(data["text/markdown"]), flags=re.MULTILINE)


def _fenced(printed: list[str]) -> Iterator[str]:
    text = "\n".join(part.strip("\n") for part in printed)
    if text:
        yield f"```text\n{text}\n```"


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
