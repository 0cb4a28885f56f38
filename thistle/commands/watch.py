"""`thistle watch`: the report's page, live."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import Out
from thistle.experiments.errors import UserError
from thistle.terminal.screen import complain, results


def watch(
    source: Annotated[
        str, typer.Argument(metavar="RUN|DIR", help="A run folder, a sweep, a folder of runs, or a name below --out.")
    ] = "",
    host: Annotated[str, typer.Option(help="Where to listen; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free one.")] = 8765,
    out: Out = "runs",
) -> None:
    """Show runs in the browser while they are running; stop with Ctrl-C."""
    from thistle.report.live import LOCAL, make_server
    from thistle.report.sources import find_folder

    folder = find_folder(source, out) if source else _made(out)
    server = make_server([folder], host)
    listener = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    results.print(f"http://{name}:{listener.getsockname()[1]}/  ({folder})", markup=False, soft_wrap=True)
    if host not in LOCAL:
        complain(f"--host {host}: anyone who can reach this machine can read these runs; there is no password")
    server.run(sockets=[listener])


def _made(out: str) -> Path:
    """The folder of all runs; you can watch it before there is a run."""
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None
    return folder.resolve()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: cannot listen: {error.strerror}; try --port 0") from None
