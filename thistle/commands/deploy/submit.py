"""`thistle deploy submit` and `resume`: run an experiment on the federation whose server is on this machine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import tomli_w
import typer

from thistle.commands.options import KeepReplies, Overrides, Quiet, ServerState, Source, with_replies
from thistle.commands.resume import find_run
from thistle.deploy.follow import Follower, shown, wait_for_verdict
from thistle.deploy.members import Members, listed
from thistle.deploy.state import State, again, running_server
from thistle.deploy.submissions import write_down
from thistle.engines import staging
from thistle.engines.flower_programs import NAME, EngineError, Flwr, flower_environment
from thistle.experiments.chain import fingerprint, user
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, nest
from thistle.experiments.settings import Run
from thistle.running.cautions import cautions
from thistle.running.launch import show_summary
from thistle.running.prepare import make_experiment
from thistle.terminal.progress import RunProgress
from thistle.terminal.screen import complain, say

ENDING = 30.0
"""Seconds: the ServerApp of a run that has failed may need a moment to learn of it."""


def submit(
    source: Source,
    overrides: Overrides = None,
    name: Annotated[str, typer.Option(help="The run's name; default: the experiment's, with the time.")] = "",
    out: Annotated[str, typer.Option(help="The folder for run folders, on the server; default: in its state.")] = "",
    keep_replies: KeepReplies = False,
    nodes: Annotated[int, typer.Option(min=0, help="Start with this many nodes; 0: with those online.")] = 0,
    state: ServerState = "",
    quiet: Quiet = False,
) -> None:
    """Run an experiment on the federation; exit code 0 only if the run finished."""
    experiment = make_experiment(source, with_replies(overrides, keep_replies), name, deployed=True)
    server = running_server(state)
    experiment = for_server(experiment, server, bool(name), out, nodes)
    if experiment.attack.kind != "none" and not quiet:
        say("attack.* is ignored on real nodes: a node attacks only if its own --role says so")
    if not quiet and (about := clip_line(experiment)):
        say(about)
    raise typer.Exit(_carry_out(server, experiment, quiet))


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name on the server, or its folder.")],
    state: ServerState = "",
    quiet: Quiet = False,
) -> None:
    """Continue a run after its last checkpoint, on the federation as it is now."""
    server = running_server(state)
    folder = find_run(run, str(server.runs))
    if folder.get_status().get("status") == "finished":
        raise UserError(f"{folder.path}: this run is finished")
    folder.wait_until_free(ENDING)
    flat = folder.load_experiment().flat()
    flat |= {"run.resume": True, "run.name": folder.path.name, "run.out": str(folder.path.parent)}
    raise typer.Exit(_carry_out(server, Experiment.of(flat), quiet))


def clip_line(experiment: Experiment) -> str:
    """Whether something holds back a client whose update is far longer than usual; empty where the strategy does."""
    clip = experiment.client.clip
    if isinstance(clip, float):
        return f"client.clip = {clip:g}: updates longer than {clip:g} times the usual length are clipped to that"
    from thistle.strategies.build import chosen

    if chosen(experiment).is_mean():
        return f"client.clip = off: one accepted reply can ruin the model of {experiment.strategy.name}"
    return ""


def for_server(experiment: Experiment, server: State, named: bool, out: str, nodes: int) -> Experiment:
    """With a run folder next to the ServerApp, which works in its own folder."""
    usual = str(server.runs)
    if not out and experiment.run.out not in (str(Path(Run().out).resolve()), usual):
        raise UserError(f"run.out = {experiment.run.out!r}: set the server's folder for runs with --out")
    name = experiment.run.name if named else f"{experiment.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    place = str(Path(out).expanduser().absolute()) if out else usual
    return Experiment.of(experiment.flat() | {"run.name": name, "run.out": place, "runtime.workers": nodes})


def _carry_out(server: State, experiment: Experiment, quiet: bool) -> int:
    """The exit code."""
    flwr = Flwr(flower_environment(server.home))
    if not quiet:
        for line in _about_nodes(server, experiment, {n["node-id"] for n in listed(flwr) if n["status"] == "online"}):
            say(line)
    with tempfile.TemporaryDirectory(prefix="thistle-") as scratch:
        return _run(server, flwr, experiment, Path(scratch), quiet)


def _about_nodes(server: State, experiment: Experiment, online: set[str]) -> list[str]:
    """What to say about the nodes online, before they start."""
    if not online:
        return ["no node is online yet: the run waits for the first"]
    replies, sites = Members(server).replies(experiment.task.clients, online)
    replies = min(replies, experiment.client.per_round)
    return cautions(experiment, replies, "sites" if replies == sites else "clients") if replies else []


def _run(server: State, flwr: Flwr, experiment: Experiment, scratch: Path, quiet: bool) -> int:
    config = scratch / "run.toml"
    config.write_text(tomli_w.dumps(nest(experiment.flat())), encoding="utf-8")
    app = staging.stage_app(scratch / staging.NAME)
    staging.stage_code(app, experiment)
    mirror = RunFolder(scratch / experiment.run.name)
    mirror.path.mkdir()
    if not quiet:
        say(f"$ {shown(flwr, 'run', str(app), NAME, '-c', str(config))}")
    document = {**experiment.flat(), "run.resume": False, "run.until": 0}
    about = {"run": experiment.run.name, "again": experiment.run.resume, "experiment_sha256": fingerprint(document)}
    server.audit.append("submitted", user=user(), **about)
    run_id = flwr.run(app, config)
    write_down(server, run_id, Path(experiment.run.out) / experiment.run.name)
    follower = None
    try:
        with RunProgress(mirror, experiment.rounds, quiet) as progress:
            follower = Follower(flwr, run_id, mirror, progress)
            follower.follow()
        status = wait_for_verdict(flwr, run_id)
        if status != "finished:completed":
            raise EngineError(f"the run is {status}")
    except EngineError as error:
        complain(f"{error}; {_where(follower, experiment)}")
        complain(f"continue with: {again(server, 'resume', experiment.run.name)}")
        return 1
    except KeyboardInterrupt:
        complain(f"the run continues: {_where(follower, experiment)}; stop it with:")
        say(again(server, "stop", experiment.run.name))
        raise
    if not quiet:
        show(mirror, follower, experiment)
    return 0


def show(mirror: RunFolder, follower: Follower, experiment: Experiment) -> None:
    """The summary; if the log stream broke before it came, at least its location."""
    if mirror.summary.is_file():
        show_summary(mirror, follower.folder)
        say(f"next: thistle report {experiment.run.name}")
    else:
        say(f"the run has finished; its summary did not arrive: {_where(follower, experiment)}")


def _where(follower: Follower | None, experiment: Experiment) -> str:
    folder = follower.folder if follower and follower.folder else f"{experiment.run.out}/{experiment.run.name}"
    return f"its folder, on the server, is {folder}"
