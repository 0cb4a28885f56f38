"""Phrases that a native editor would change, wherever people read them, with what to write instead."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
READ = {".md", ".py", ".js", ".html", ".toml", ".yaml", ".sh"}
NOT_OURS = {"tests/test_language.py", "LICENSE"}

BETTER = {
    r"seconds? a round": "seconds per round",
    r"\bs a round\b": "s per round",
    r"\d+ a round\b": "10 per round",
    r"(clients|replies|messages|models?) a round": "clients per round",
    r"\bone a core\b": "one per core",
    r"a process a\b": "one process per",
    r"\ba row a\b": "one row per",
    r"\bone (line|value|file|curve|colour) an? (?!time)\w+\b": "one line per image",
    r"\ba model a client\b": "one model per client",
    r"\ba (line|tensor|picture|table) each\b": "one line each",
    r"has no say": "is ignored",
    r"\b(is|are) not heeded": "is ignored",
    r"what became of": "each client's outcome",
    r"need no thousand": "you don't need a thousand",
    r"What is not is rejected": "Anything else is rejected",
    r"no gaps and no doubles": "no gaps or duplicates",
    r"ended without a word": "exited unexpectedly",
    r"without a word\b": "silently, or: without an error",
    r"still at it": "in use by another process",
    r"takes? images for": "classifies images",
    r"for nobody's": "do not copy it to any",
    r"\bas ever\b": "as usual",
    r"\bin mid-(run|word|air)": "in the middle of a run",
    r"\bthat is at fault": "that caused it",
    r"\bhas the last word\b": "wins",
    r"\bnobody's\b": "no one's, or say whose",
    r"\bin so far as\b": "where",
    r"\binto the bargain\b": "as well",
    r"\bbe it that\b": "if",
    r"\bthe like of\b": "like",
    r"\ball the same,": "even so,",
    r"\bfor want of\b": "because there is no",
    r"\bto be had\b": "available",
    r"\bcan be had\b": "is available",
    r"\bof an afternoon\b": "in an afternoon",
    r"\bslips? of the pen\b": "typing mistake",
    r"\bleavings\b": "what is left",
    r"\bat a client's expense\b": "during a client's time",
    r"\bhimself\b": "themselves, or itself",
    r"\bgoes along with it\b": "is copied with it",
    r"\bso many nodes, the last ones\b": "the last N nodes",
    r"\bwhole of it\b": "all of it",
    r"\bone's own\b": "your own",
    r"\btoo(,)? much weight to say\b": "too heavy",
}
"""At least forty: a regular expression, and what it should say."""


def texts() -> list[str]:
    """The files of the project that people read."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [name for name in listed.splitlines() if Path(name).suffix in READ and name not in NOT_OURS]
    return [name for name in found if (ROOT / name).is_file()]


def test_there_are_forty_phrases_and_each_can_be_found() -> None:
    assert len(BETTER) >= 40
    assert all(re.compile(phrase) for phrase in BETTER)


@pytest.mark.parametrize("phrase", BETTER)
def test_nobody_reads_this_phrase(phrase: str) -> None:
    pattern = re.compile(phrase)
    found = []
    for name in texts():
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}: {line.strip()[:160]}")
    assert not found, f"better: {BETTER[phrase]}\n" + "\n".join(found)
