"""`thistle run`: one experiment, from a preset or a file, to a run folder."""

from __future__ import annotations

from typing import Annotated

import typer

from thistle.commands.options import KeepReplies, NewOut, OnEngine, Overrides, Quiet, Source, Workers, with_replies
from thistle.running.launch import Engine, Launch
from thistle.running.prepare import make_experiment


def run(
    source: Source,
    overrides: Overrides = None,
    name: Annotated[str, typer.Option(help="The run's name; default: the experiment's, numbered.")] = "",
    out: NewOut = "",
    workers: Workers = None,
    engine: OnEngine = Engine.RAY,
    keep_replies: KeepReplies = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment and keep everything about it in a run folder."""
    experiment = make_experiment(source, with_replies(overrides, keep_replies), name, out, workers)
    launch = Launch(engine, quiet)
    with launch.new_run(experiment, exact=bool(name)) as job:
        code = launch.carry_out(*job)
    raise typer.Exit(code)
