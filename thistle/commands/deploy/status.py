"""`thistle deploy status`: processes, connected nodes, and the progress of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from thistle.commands.options import ServerState
from thistle.deploy.health import all_answers
from thistle.deploy.members import Members, listed
from thistle.deploy.state import State, running_server
from thistle.deploy.submissions import Submission, submitted
from thistle.engines.flower_programs import NAME, Flwr, flower_environment
from thistle.experiments.runfolder import read_lines
from thistle.server.recording.sites import tally
from thistle.terminal.screen import results, table


def status(
    state: ServerState = "",
) -> None:
    """Health of each process, nodes, runs; exit code 1 if a process does not answer."""
    server = running_server(state)
    health = all_answers(server.told())
    results.print(table("processes", ["", ""], [[name, "up" if up else "no answer"] for name, up in health.items()]))
    if not health.get("superlink"):
        raise typer.Exit(1)
    flwr = Flwr(flower_environment(server.home))
    runs = flwr.call("ls", NAME).get("runs", [])[:5]
    names = {one.run_id: one for one in submitted(server)}
    newest = next((names[str(run["run-id"])] for run in runs if str(run["run-id"]) in names), None)
    sites = tally(list(read_lines(newest.run.metrics))) if newest else {}
    nodes = list(_nodes(server, flwr, sites))
    about = f"in {newest.name}" if newest else ""
    results.print(table("nodes", ["name", "node", "clients", "status", about], nodes))
    results.print(table("runs", ["run", "submitted", "status", "round"], [_run(run, names) for run in runs]))
    raise typer.Exit(0 if all(health.values()) else 1)


def _nodes(server: State, flwr: Flwr, sites: Mapping[str, Mapping[str, Any]]) -> Iterable[list[str]]:
    members = Members(server).all()
    for node in listed(flwr):
        if node["status"] == "unregistered":
            continue
        said = members.get(node["node-id"], {})
        name = str(said.get("name", ""))
        yield [name, node["node-id"], str(said.get("clients", "")), node["status"], _part(sites.get(name))]
    if not members:  # on loopback nodes name themselves, to the runs only
        yield from ([name, "", "", "", _part(said)] for name, said in sites.items())


def _part(said: Mapping[str, Any] | None) -> str:
    """A site's part in a run so far."""
    if not said:
        return ""
    used = said["rounds"] - said["left_out"] - said["silent"]
    return f"used in {used} of {said['rounds']} rounds" + (f"; left out by {said['step']}" if said["left_out"] else "")


def _run(run: Mapping[str, Any], names: Mapping[str, Submission]) -> list[str]:
    """One of Flower's runs by its name; rounds from its folder, if it is here and belongs to this submission."""
    number, status = str(run["run-id"]), str(run["status"])
    known = names.get(number)
    if known is None:
        return [number, "", status, ""]
    last = [one for one in names.values() if one.folder == known.folder][-1]
    rounds = [line["round"] for line in read_lines(known.run.metrics)] if last is known else []
    return [known.name, known.time, status, str(rounds[-1]) if rounds else ""]
