"""Where the generated parts go: between two comments, of which the first names the part.

<!-- generated: client settings (make generate) -->
…
<!-- end of client settings -->
"""

from __future__ import annotations

import re
from pathlib import Path

from thistle.experiments.plugins import APP
from thistle.reference.parts import FAMILIES, PARTS

DOCUMENTS = (
    "pyproject.toml",
    "strategies/__init__.py",
    "docs/guide.md",
    "docs/strategies.md",
    *(f"docs/attacks/{name}.md" for name in FAMILIES),
)
PLACE = re.compile(
    r"(?P<first>^ *(?:<!--|#) generated: (?P<name>[a-z ]+?) \([^\n]*\n)(?:.*?)"
    r"(?P<last>^ *(?:<!--|#) end of (?P=name)\b)",
    re.MULTILINE | re.DOTALL,
)


def regenerated(text: str) -> str:
    """The document with every generated part made again."""
    return PLACE.sub(lambda place: f"{place['first']}{_part(place['name'])}{place['last']}", text)


def _part(name: str) -> str:
    """Markdown needs an empty line between a comment and a table."""
    return f"\n{PARTS[name]()}\n"


def stale(root: Path = APP) -> dict[Path, str]:
    """The documents of a checkout that the code has outrun, with what they should say."""
    texts = {root / name: (root / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    fresh = {path: regenerated(text) for path, text in texts.items()}
    return {path: text for path, text in fresh.items() if text != texts[path]}
