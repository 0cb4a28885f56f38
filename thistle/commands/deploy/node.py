"""`thistle deploy node`: run a SuperNode and the process that starts its ClientApps, until Ctrl-C."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import Cold
from thistle.deploy.nodeconfig import as_text, node_config
from thistle.deploy.programs import fork_servers, supernode
from thistle.deploy.state import State, root
from thistle.deploy.supervisor import Supervisor
from thistle.experiments.errors import UserError
from thistle.terminal.addresses import parse_address
from thistle.terminal.screen import log


def node(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's gateway.")],
    certs: Annotated[Path, typer.Option(help="This node's folder made by thistle certs.")],
    clients: Annotated[str, typer.Option(metavar="0-9,12", help="The clients that it asks to run.")] = "",
    data: Annotated[
        str, typer.Option(help="folder:, npz:, csv: or parquet:PATH: train on this instead of the task's data.")
    ] = "",
    role: Annotated[str, typer.Option(help="honest, malicious or calibrated.")] = "honest",
    attack: Annotated[str, typer.Option(help="What a malicious node does (thistle list attacks).")] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="attack-strength=… (malicious), epsilon=… (calibrated)."),
    ] = None,
    name: Annotated[str, typer.Option(help="Its name, for state and log; default: its folder's name.")] = "",
    state: Annotated[str, typer.Option(help="The state folder; keep it. Default: ~/.thistle/node-NAME.")] = "",
    cold: Cold = False,
) -> None:
    """Run a node of a federation."""
    folder = certs.expanduser().absolute()
    for file in ("ca.crt", "node.key"):
        if not (folder / file).is_file():
            raise UserError(f"--certs {folder}: has no {file}; it should be a node's folder of thistle certs")
    parse_address("--server", server)
    name = name or folder.name
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise UserError(f"--name {name}: should be a plain name")
    config = node_config(clients, data, role, attack, settings or [])
    place = State(Path(state).expanduser().absolute() if state else root() / f"node-{name}")
    place.create()
    with place.held():
        forks = fork_servers(f"{name}-warm", place, cold, log)
        services = supernode(name, place, server, as_text(config), folder / "ca.crt", folder / "node.key", forks)
        place.tell({"server": server, "services": {service.name: service.health for service in services}})
        with contextlib.suppress(KeyboardInterrupt), Supervisor([*forks, *services], log) as supervisor:
            supervisor.run(lambda: log(f"the node {name} is up"))
