"""`thistle deploy doctor`: what would keep this machine out of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.deploy.state import State, root
from thistle.experiments.errors import UserError
from thistle.terminal.addresses import parse_address
from thistle.terminal.screen import results


def doctor(
    certs: Annotated[Path, typer.Option(help="This machine's folder made by thistle certs: the server's or a node's.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="On a node: the server's gateway.")] = "",
    data: Annotated[str, typer.Option(help="On a node: its own data, folder:, npz:, csv: or parquet:PATH.")] = "",
    listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help="On the server: its gateway.")] = "0.0.0.0:8443",
    state: Annotated[str, typer.Option(help="On the server: its state folder.")] = "",
) -> None:
    """Check a machine before (or while) it takes part; exit code 1 if something is wrong."""
    from thistle.deploy.doctor import examine_node, examine_server

    folder = certs.expanduser().absolute()
    parse_address("--server" if server else "--listen", server or listen)
    if server:
        findings = examine_node(server, folder, data)
    elif (folder / "node.key").is_file():
        raise UserError(f"--certs {folder}: is a node's folder; name its server with --server HOST:PORT")
    else:
        place = State(Path(state).expanduser().absolute() if state else root() / "server")
        findings = examine_server(folder, place, listen)
    well = True
    for finding in findings:
        well &= finding.well
        mark = "ok  " if finding.well else "FAIL"
        results.print(f"{mark} {finding.what}: {finding.text}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if well else 1)
