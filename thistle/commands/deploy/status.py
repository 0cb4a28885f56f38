"""`thistle deploy status`: what runs here, who is connected, how far the runs are."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from thistle.commands.options import ServerState
from thistle.deploy.health import all_answers
from thistle.deploy.members import Members, listed
from thistle.deploy.state import State, running_server
from thistle.engines.flower_programs import NAME, Flwr, flower_environment
from thistle.experiments.runfolder import RunFolder, read_lines
from thistle.terminal.screen import results, table


def status(
    state: ServerState = "",
) -> None:
    """Health of each process, nodes, runs; exit code 1 where a process does not answer."""
    server = running_server(state)
    health = all_answers(server.told())
    results.print(table("processes", ["", ""], [[name, "up" if up else "no answer"] for name, up in health.items()]))
    if not health.get("superlink"):
        raise typer.Exit(1)
    flwr = Flwr(flower_environment(server.home))
    results.print(table("nodes", ["name", "node", "clients", "status"], list(_nodes(server, flwr))))
    results.print(table("runs", ["run", "status", "round"], list(_runs(server, flwr))))
    raise typer.Exit(0 if all(health.values()) else 1)


def _nodes(server: State, flwr: Flwr) -> Iterable[list[str]]:
    members = Members(server).all()
    for node in listed(flwr):
        said = members.get(node["node-id"], {})
        if node["status"] != "unregistered":
            yield [str(said.get("name", "")), node["node-id"], str(said.get("clients", "")), node["status"]]


def _runs(server: State, flwr: Flwr) -> Iterable[list[str]]:
    """The newest of Flower's runs; the rounds of those that are going on, from the folders that lie here."""
    for run in flwr.call("ls", NAME).get("runs", [])[:5]:
        yield [str(run["run-id"]), str(run["status"]), ""]
    going_on = [RunFolder(path) for path in server.runs.iterdir()] if server.runs.is_dir() else []
    for folder in going_on:
        if folder.is_held():
            rounds = [line["round"] for line in read_lines(folder.metrics)]
            yield [folder.path.name, str(folder.get_status().get("status", "")), str(rounds[-1] if rounds else 0)]
