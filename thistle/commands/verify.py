"""`thistle verify`: repeat a claimed run, and say whether it gives the same model."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import Out, Quiet
from thistle.experiments.errors import RunFailed
from thistle.running.launch import Engine
from thistle.running.prepare import read_overrides
from thistle.terminal.screen import complain, results, say


def verify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER|ENTRY.json",
            help="A run folder or the kept part of one, a folder of runs (a sweep), or a leaderboard entry.",
        ),
    ],
    cell: Annotated[str, typer.Option(metavar="CELL", help="For an entry: one cell, such as 0.3; default: all.")] = "",
    seed: Annotated[int | None, typer.Option(metavar="N", help="For an entry: one seed; default: all.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Where to run: task.data-dir, runtime.device, …"),
    ] = None,
    keep: Annotated[str, typer.Option(metavar="DIR", help="Keep the new runs there; default: remove them.")] = "",
    engine: Annotated[Engine, typer.Option(help="inline or ray: the result is the same.")] = Engine.INLINE,
    out: Out = "runs",
    quiet: Quiet = False,
) -> None:
    """Repeat a run or a leaderboard cell, and compare the models bit by bit.

    Exit codes: 0: all models are identical. 1: one differs although it was made in the same environment, or has
    another accuracy than claimed, or its run does not finish. 3: one differs, but it was made in another environment
    (processor, versions, Thistle's code), which may explain it. 2: nothing could be compared.
    """
    from thistle.verify.again import Outcome, run_again
    from thistle.verify.claims import read_claims

    claims, changes = read_claims(source, out, cell, seed), read_overrides(overrides or [])
    outcomes = []
    with ExitStack() as stack:
        home = Path(keep).expanduser() if keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, claim in enumerate(claims, 1):
            if not quiet:
                say(f"run {number} of {len(claims)}: {claim.label}")
            try:
                verdict = run_again(claim, home, engine, quiet, changes)
            except RunFailed as error:
                complain(f"{claim.label}: does not finish: {error}")
                outcomes.append(Outcome.REFUTED)
                continue
            outcomes.append(verdict.outcome)
            first, *more = verdict.lines()
            results.print(f"{claim.label}: {first}", markup=False, soft_wrap=True)
            for line in more:
                results.print(f"  {line}", markup=False, soft_wrap=True)
    if len(claims) > 1:
        same = outcomes.count(Outcome.SAME)
        results.print(f"{same} of {len(claims)} are identical to the bit", markup=False)
    worst = [one for one in (Outcome.REFUTED, Outcome.EXPLAINED) if one in outcomes]
    raise typer.Exit(int(worst[0]) if worst else 0)
