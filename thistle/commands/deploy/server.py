"""`thistle deploy server`: run the SuperLink, its ServerApps and the gateway until Ctrl-C."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import MetricsPort
from thistle.deploy.disk import DiskWatch, LogWatch
from thistle.deploy.gateway import gateway
from thistle.deploy.health import accepts
from thistle.deploy.metrics import page, samples, serving
from thistle.deploy.programs import LOOPBACK, ServerFiles, server_superexec, superlink
from thistle.deploy.state import State, root
from thistle.deploy.supervisor import Supervisor
from thistle.engines.flower_programs import write_connection
from thistle.experiments.chain import user
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_json
from thistle.terminal.addresses import parse_address
from thistle.terminal.screen import log


def server(
    certs: Annotated[Path, typer.Option(help="The folder `server` that thistle certs made.")],
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where nodes reach the gateway.")
    ] = "0.0.0.0:8443",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperLink's port, on loopback.")] = 8000,
    state: Annotated[str, typer.Option(help="The state folder; keep it. Default: ~/.thistle/server.")] = "",
    no_gateway: Annotated[bool, typer.Option("--no-gateway", help="Only for nodes on this machine.")] = False,
    min_free: Annotated[float, typer.Option(help="Close the gateway below this many GiB of free disk.")] = 1.0,
    metrics: MetricsPort = 0,
) -> None:
    """Run the federation's server with TLS and node authentication."""
    files = server_files(certs)
    parse_address("--listen", listen, "such as 0.0.0.0:8443")
    place = State(Path(state).expanduser().absolute() if state else root() / "server")
    place.create()
    with place.held():
        if accepts(f"{LOOPBACK}:{port}"):
            raise UserError(f"--port {port}: already in use")
        place.audit.append("server started", user=user(), listen="" if no_gateway else listen)
        if not place.bindings.is_file():
            write_json(place.bindings, {})
        write_connection(place.home, f"{LOOPBACK}:{port}", files.ca)
        link = superlink(place, port, files)
        services = [link, server_superexec(place, port, files, link)]
        door = None if no_gateway else gateway(place, port, files, listen, link)
        services += [door] if door else []
        place.tell(
            {
                "port": port,
                "ca": str(files.ca),
                "listen": "" if no_gateway else listen,
                "services": {service.name: service.health for service in services},
            }
        )
        supervisor = Supervisor(services, log)
        if door:
            supervisor.chores.append(DiskWatch(place.path, int(min_free * 2**30), door, log))
            supervisor.chores.append(LogWatch([place.access_log, door.log], log))
        said = serving(metrics, lambda: page(samples(place, services, files.certificate)))
        with contextlib.suppress(KeyboardInterrupt), said, supervisor:
            supervisor.run(lambda: log(_welcome(files, listen, port, no_gateway)))


def server_files(folder: Path) -> ServerFiles:
    """The files that thistle certs made, all present."""
    folder = folder.expanduser().absolute()
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (folder / name).is_file():
            raise UserError(f"--certs {folder}: has no {name}; it should be the folder `server` of thistle certs")
    return ServerFiles(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def _welcome(files: ServerFiles, listen: str, port: int, no_gateway: bool) -> str:
    where = f"{LOOPBACK}:{port}" if no_gateway else listen
    keys = files.ca.parent / "nodes"
    return f"nodes connect to {where}. Admit them with: thistle deploy add-node {keys}/NAME.pub --clients 0-9"
