"""`thistle deploy add-node` and `revoke`: who may take part, and as which clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import ServerState
from thistle.deploy.follow import shown
from thistle.deploy.members import Members, fingerprint, register, unregister
from thistle.deploy.state import running_server
from thistle.engines.flower_programs import NAME, Flwr, flower_environment
from thistle.experiments.chain import user
from thistle.experiments.errors import UserError
from thistle.terminal.screen import results, say


def add_node(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="The node's public key: server/nodes/NAME.pub.")],
    clients: Annotated[str, typer.Option(metavar="0-9,12", help="The clients that this node runs.")],
    own_data: Annotated[
        bool, typer.Option("--own-data", help="It trains on its own data: accept the sizes it reports, up to a limit.")
    ] = False,
    name: Annotated[
        str, typer.Option(help="Its name in reports and logs, such as 'North Clinic'; default: the key's name.")
    ] = "",
    state: ServerState = "",
) -> None:
    """Admit a node by its key and bind clients to it, for runs that start later; repeat it to bind other clients."""
    if not key.is_file():
        raise UserError(f"{key}: no such file")
    mark = fingerprint(key)
    server = running_server(state)
    if "ca" not in server.told():
        raise UserError(f"{server.path}: this server is on loopback without certificates, so it has no keys to admit")
    members = Members(server)
    with members.alone():
        known = members.all()
        node = next((node for node, said in known.items() if said.get("key") == mark), "")
        name = name or str(known.get(node, {}).get("name") or key.stem)
        members.check(clients, but=node)
        members.check_name(name, but=node)
        if not node:
            flwr = Flwr(flower_environment(server.home))
            say(f"$ {shown(flwr, 'supernode', 'register', str(key), NAME, '--name', name)}")
            node = register(flwr, key, name)
        about = {"node": node, "name": name, "clients": clients, "own_data": own_data, "key": mark}
        server.audit.append("admitted", user=user(), **about)
        members.bind(node, clients, own_data, name, mark)
    results.print(f"{name} (node {node}) runs clients {clients}", markup=False, soft_wrap=True)


def revoke(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name, its id or its public key file.")],
    state: ServerState = "",
) -> None:
    """Shut a node out permanently: its key cannot be admitted again."""
    server = running_server(state)
    members = Members(server)
    with members.alone():
        found = members.find(node)
        flwr = Flwr(flower_environment(server.home))
        say(f"$ {shown(flwr, 'supernode', 'unregister', found, NAME)}")
        unregister(flwr, found)
        members.drop(found)
        server.audit.append("revoked", user=user(), node=found)
    results.print(f"{node} (node {found}) is shut out; it needs a new key to come back", markup=False, soft_wrap=True)
