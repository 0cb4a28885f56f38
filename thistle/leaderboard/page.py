"""All entries as one page: the worst case of each defence first, then every attack, then how to verify it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thistle.leaderboard.entries import NOBODY, Entry, board_of
from thistle.sweeps.tables import markdown

HEAD = """# Leaderboard

What each defence keeps under the worst attack that [`thistle stress`](stress.md) finds, in % of accuracy (mean ± \
standard error over the seeds; without ±: one seed), and which attack that is. It is an upper bound: [what it does not \
prove](stress.md#what-it-does-not-prove). Made by `thistle leaderboard` from the files in `leaderboard/`; how to [add \
an entry](../CONTRIBUTING.md#add-an-entry-to-the-leaderboard)."""
Entries = Mapping[str, Entry]
"""By the path that `thistle verify` is given."""


def make_page(entries: Mapping[Path, Entry], root: Path) -> str:
    """In Markdown; files are named from `root`."""
    boards: dict[str, dict[str, Entry]] = {}
    for path, entry in entries.items():
        name = path.resolve().relative_to(root.resolve()).as_posix() if _below(path, root) else str(path)
        boards.setdefault(board_of(entry), {})[name] = entry
    parts = [HEAD]
    for board in sorted(boards.values(), key=_title):
        parts += _board(board)
    return "\n\n".join(parts) + "\n"


def _below(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _title(entries: Entries) -> str:
    entry = next(iter(entries.values()))
    keys = entry["experiment"]
    skew = f", α = {keys['task.alpha']:g}" if str(keys["task.partition"]).startswith("dirichlet") else ""
    return (
        f"{keys['task.name']}: {keys['client.per-round']} of {keys['task.clients']} clients per round, "
        f"{keys['task.partition']}{skew}, {keys['rounds']} rounds ({entry['suite']})"
    )


def _board(entries: Entries) -> Iterator[str]:
    yield f"## {_title(entries)}"
    for suite in ("", "backdoor/"):
        shares = sorted({float(name.removeprefix("backdoor/")) for name in _worst_names(entries, suite)})
        if not shares:
            continue
        ranked = dict(sorted(entries.items(), key=lambda pair: _rank(pair[1], suite, shares)))
        attackers = [f"{100 * share:g} %" for share in shares]
        if suite:
            yield "### Backdoors\n\nHow often the worst backdoor succeeds, and the accuracy with it."
        else:
            yield f"### Worst case\n\nOrdered by the mean over {', '.join(attackers)} attackers."
        yield markdown(["defence", "no attack", *attackers], [_row(one, suite, shares) for one in ranked.values()])
        yield "Verify any of these:\n\n" + "\n".join(_commands(ranked, suite, shares))
        for share, words in zip(shares, attackers, strict=True):
            yield f"### Every {'backdoor' if suite else 'attack'} at its worst settings, {words} attackers"
            yield markdown(["attack", *(one["defence"] for one in ranked.values())], _kinds(ranked, suite, share))
    yield _files(entries)


def _worst_names(entries: Entries, suite: str) -> set[str]:
    return {name for one in entries.values() for name in one["worst"] if name.startswith("backdoor/") == bool(suite)}


def _rank(entry: Entry, suite: str, shares: Sequence[float]) -> tuple[float, float]:
    """The best first; entries that lack a share come after those that have all."""
    found = [cell for share in shares if (cell := _worst(entry, suite, share))]
    value = fmean(-cell["success"] if suite else cell["accuracy"] for cell in found) if found else 0.0
    return len(shares) - len(found), -value


def _worst(entry: Entry, suite: str, share: float) -> dict[str, Any] | None:
    return _find(entry, entry["worst"].get(f"{suite}{share:g}", ""))


def _find(entry: Entry, name: str) -> dict[str, Any] | None:
    return next((cell for cell in entry["cells"] if cell["cell"] == name), None)


def _row(entry: Entry, suite: str, shares: Sequence[float]) -> list[str]:
    limit = f" (within {entry['budget']:g} min)" if entry["plan"]["shortened"] else ""
    nobody = _find(entry, NOBODY)
    cells = [_words(_worst(entry, suite, share), suite, named=True) for share in shares]
    return [f"{entry['defence']}{limit}", _words(nobody, "", named=False), *cells]


def _words(cell: Mapping[str, Any] | None, suite: str, named: bool) -> str:
    if cell is None:
        return "–"
    number = _number(cell, "accuracy")
    if suite:
        number = f"{_number(cell, 'success')} ({number})"
    settings = cell["label"].removeprefix(cell["attack"]).removeprefix(", ") if cell["fraction"] else ""
    return ", ".join(filter(None, [f"{number} {cell['attack']}" if named else number, settings]))


def _number(cell: Mapping[str, Any], name: str) -> str:
    error = cell.get(f"{name}_error")
    return f"{100 * cell[name]:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _kinds(entries: Entries, suite: str, share: float) -> list[list[str]]:
    """A row per attack, the most harmful to the best defence first."""
    names = {
        cell["cell"]: cell["attack"]
        for one in entries.values()
        for cell in one["cells"]
        if cell["cell"].startswith(f"{suite}{share:g}/")
    }
    found = {attack: [_find(one, name) for one in entries.values()] for name, attack in names.items()}
    order = sorted(found, key=lambda attack: max(_kept(cell, suite) for cell in found[attack] if cell))
    return [[attack, *(_words(cell, suite, named=False) for cell in found[attack])] for attack in order]


def _kept(cell: Mapping[str, Any], suite: str) -> float:
    return 1 - float(cell["success"]) if suite else float(cell["accuracy"])


def _commands(entries: Entries, suite: str, shares: Sequence[float]) -> Iterator[str]:
    for path, entry in entries.items():
        for share in shares:
            if cell := _worst(entry, suite, share):
                yield f"    thistle verify {path} --cell {cell['cell']}"


def _files(entries: Entries) -> str:
    """Where the cells are, and where they were made."""
    links = ", ".join(f"[{one['defence']}]({'/'.join(Path(path).parts[-2:])})" for path, one in entries.items())
    machines = sorted({machine["cpu"] for one in entries.values() for machine in one["environments"]})
    return (
        f"Any other cell: `thistle verify FILE --cell SHARE/ATTACK`, such as `--cell 0.3/ipm`, with the files {links}. "
        f"Made on {'; '.join(machines)}."
    )
