"""Text that comes from elsewhere, made safe to show: printable characters only, one line, bounded."""

from __future__ import annotations

import re

LONGEST = 200
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def printable(text: object, longest: int = LONGEST) -> str:
    """At most `longest` printable characters; terminal codes go, control characters become spaces."""
    raw = _ESCAPE.sub("", str(text)[: 4 * longest])
    line = " ".join("".join(c if c.isprintable() else " " for c in raw).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def last_line(text: str, longest: int = LONGEST) -> str:
    """The last non-empty line of a traceback: the one that says what happened."""
    lines = [line for line in text[-20_000:].splitlines() if line.strip()]
    return printable(lines[-1] if lines else "no reason given", longest)
