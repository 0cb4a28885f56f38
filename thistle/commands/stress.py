"""`thistle stress`: the worst case of an experiment over a suite of attacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.attacks.stress.suite import SUITES, VERSION
from thistle.commands.options import Overrides, Source
from thistle.running.launch import Engine
from thistle.terminal.screen import complain, results, say, table
from thistle.worst_case.document import Found
from thistle.worst_case.files import percent, worst_table
from thistle.worst_case.question import ask
from thistle.worst_case.search import Search


def stress(
    source: Source,
    overrides: Overrides = None,
    fractions: Annotated[str, typer.Option(metavar="F,F,…", help="Shares of malicious clients.")] = "0.1,0.3,0.6",
    suite: Annotated[str, typer.Option(metavar="|".join(SUITES), help="Which attacks to try.")] = "standard",
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds 0 … N−1 for the worst attacks.")] = 3,
    budget: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="Try fewer attacks, to finish in this time; default: all.")
    ] = None,
    out: Annotated[str, typer.Option(help="The folder for the search's folder.")] = "runs",
    name: Annotated[
        str, typer.Option(help="The name of the search's folder; default: the experiment's name and -stress.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at once; 0: one (ray), or one per core (inline).")] = 0,
    engine: Annotated[Engine, typer.Option(help="inline: one process per job; ray: one Ray for all.")] = Engine.INLINE,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Only check the experiment and list what would be tried.")
    ] = False,
) -> None:
    """Search for the attack that harms an experiment most; one number per fraction of malicious clients."""
    question = ask(source, overrides or [], fractions=fractions, suite=suite, seeds=seeds, budget=budget, name=name)
    search = Search(question, Path(out).expanduser().resolve() / question.name, engine, jobs)
    if dry:
        list_candidates(search)
        return
    found = search.run()
    show(found, search.home)
    raise typer.Exit(1 if found.failed else 0)


def list_candidates(search: Search) -> None:
    """What would be tried, and what would be left out."""
    possible, left_out = search.prepare()
    rows = [[one.suite, one.label, ""] for one in possible]
    rows += [[one.candidate.suite, one.candidate.label, f"left out: {one.reason}"] for one in left_out]
    shares = ", ".join(map(percent, search.question.fractions))
    results.print(table(f"{VERSION}: {len(possible)} candidates at {shares}", ["suite", "attack", ""], rows))
    total = search.whole.total(possible, len(search.question.fractions))
    say(f"at most {total} rounds, {search.whole.rounds} for a full run and {search.whole.pause} for a short one")


def show(found: Found, home: Path) -> None:
    """The answer on stdout; what went wrong on stderr."""
    for suite in SUITES[found.question.suite]:
        results.print(table(f"{found.question.name}: worst case, {suite}", *worst_table(found, suite)))
        results.print()
    for row in found.results:
        results.print(row["quote"], markup=False, soft_wrap=True)
    cost = found.document()["cost"]
    say(f"{cost['runs']} runs, {cost['rounds']} rounds, {cost['seconds']:.0f} s of training")
    results.print(f"table, map and runs: {home}", markup=False, soft_wrap=True)
    for one in found.left_out:
        say(f"left out: {one.candidate.label}: {one.reason}")
    for label, message in found.failed.items():
        complain(f"failed: {label}: {message}")
    if found.failed:
        complain(f"{len(found.failed)} run{'s' * (len(found.failed) != 1)} failed; the same command tries again")
