"""`thistle resume`: continue a run after its last checkpoint, or a finished one for more rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import Out, Quiet
from thistle.deploy.submissions import folders_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_lines
from thistle.report.sources import is_sweep
from thistle.running.launch import Engine, Launch, engine_for, show_summary
from thistle.tasks.threads import cores


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a run's name below --out.")],
    out: Out = "runs",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Continue up to this round, even if the run has finished.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Hosts to train on; default: as before.")] = None,
    engine: Annotated[Engine, typer.Option(help="ray or inline: the result is the same.")] = Engine.RAY,
    quiet: Quiet = False,
) -> None:
    """Continue a stopped run; the final model is the same as without the stop."""
    folder = find_run(run, out)
    experiment = folder.load_experiment()
    finished = folder.get_status().get("status") == "finished"
    if finished and rounds is None:
        if not quiet:
            show_summary(folder)
        raise typer.Exit(0)
    folder.wait_until_free()
    if is_deployed(folder):
        raise UserError(f"{folder.path}: real nodes train this run; continue it with: thistle deploy resume")
    if rounds is not None:
        check_longer(experiment, folder, rounds)
    flat = experiment.flat()
    flat |= {"run.resume": True, "run.name": folder.path.name, "run.out": str(folder.path.parent)}
    flat["rounds"] = rounds or experiment.rounds
    flat["runtime.workers"] = workers or experiment.runtime.workers or cores()
    experiment = Experiment.of(flat)
    launch = Launch(engine, quiet)
    with engine_for(engine, experiment.runtime) as runner:
        plan = launch.check(experiment)
        code = launch.carry_out(runner, experiment, folder, plan)
    raise typer.Exit(code)


def check_longer(experiment: Experiment, folder: RunFolder, rounds: int) -> None:
    """Refuse anything that is not the same run, only longer."""
    from thistle.server.recording.checkpoint import load_checkpoint

    if rounds <= experiment.rounds:
        raise UserError(f"--rounds {rounds}: {folder.path} has {experiment.rounds} already; give a larger number")
    if experiment.client.lr_schedule == "cosine":
        raise UserError(f"--rounds {rounds}: client.lr-schedule = cosine follows rounds; start a new run instead")
    if is_sweep(folder.path.parent):
        raise UserError(f"--rounds {rounds}: {folder.path} is a cell of a sweep; change rounds in the sweep's file")
    if folder.metrics.exists() and load_checkpoint(folder.checkpoints) is None:
        raise UserError(f"--rounds {rounds}: {folder.path} has no complete checkpoint; start a new run")


def is_deployed(folder: RunFolder) -> bool:
    """Whether real nodes trained its rounds, so that nobody knows who attacks."""
    return any("detection" in line and line["detection"] is None for line in read_lines(folder.metrics))


def find_run(run: str, out: str) -> RunFolder:
    """The run folder that a path or a name means; a name may also be a run of a server on this machine."""
    for path in (Path(run).expanduser(), Path(out).expanduser() / run, *folders_of(run)):
        if (path / "experiment.toml").is_file():
            return RunFolder(path.resolve())
    raise UserError(f"{run}: no run folder there, nor at {Path(out) / run}")
