"""`thistle deploy stop`: end a run of the federation by its name; its last checkpoint stays."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from thistle.commands.options import ServerState
from thistle.deploy.follow import shown, wait_for_verdict
from thistle.deploy.state import State, again, running_server
from thistle.deploy.submissions import find_going_on, submitted
from thistle.engines.flower_programs import NAME, EngineError, Flwr, flower_environment
from thistle.experiments.runfolder import read_lines
from thistle.protocol.text import last_line
from thistle.terminal.screen import results, say

PATIENCE = 60.0
"""Seconds that the ServerApp has to write down that it was stopped."""


def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name, or Flower's run ID.")],
    state: ServerState = "",
) -> None:
    """Stop a run; `thistle deploy resume` continues it after its last checkpoint."""
    server = running_server(state)
    flwr = Flwr(flower_environment(server.home))
    number = find_going_on(server, flwr, run)
    say(f"$ {shown(flwr, 'stop', number, NAME)}")
    answer = flwr.call("stop", number, NAME)
    if not answer.get("success"):
        raise EngineError(f"Flower did not stop {run}: {last_line(str(answer.get('error-message') or answer))}")
    wait_for_verdict(flwr, number)
    results.print(_ended(server, number, run), markup=False, soft_wrap=True)


def _ended(server: State, number: str, name: str) -> str:
    """How far it got, once its folder says that it was stopped; a run that had not started has no folder."""
    known = next((one for one in reversed(submitted(server)) if one.run_id == number), None)
    if known is None or not known.run.experiment.is_file():
        return f"{name} is stopped; it had not started"
    deadline = time.monotonic() + PATIENCE
    while known.run.is_held() and time.monotonic() < deadline:
        time.sleep(0.2)
    rounds = [line["round"] for line in read_lines(known.run.metrics)]
    return (
        f"{name} is stopped after round {max(rounds, default=0)}; continue with: {again(server, 'resume', known.name)}"
    )
