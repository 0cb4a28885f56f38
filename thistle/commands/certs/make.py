"""`thistle certs DIR`: everything that hosts need to trust each other, one folder per host."""

from __future__ import annotations

import ipaddress
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from thistle.experiments.errors import UserError
from thistle.terminal.screen import results

SERVER = "server"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*")


def make(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an existing one to add nodes to.")],
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="The server's name or address; may be repeated.")
    ] = None,
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="A node that gets a key; may be repeated.")
    ] = None,
) -> None:
    """Make a CA, the server's certificate and a key for each node; nothing is ever overwritten."""
    names = list(dict.fromkeys(nodes or []))
    for name in names:
        check_name(f"--node {name}", name)
    for host in hosts or []:
        check_host(host)
    old = (folder / "ca.crt").is_file()
    if hosts and old:
        raise UserError(f"{folder} already holds a federation's certificates: choose another folder")
    if not hosts and not old:
        raise UserError(f"{folder} holds no CA yet: name the server with --host NAME")
    taken = next((name for name in names if (folder / name).exists()), None)
    if taken:
        raise UserError(f"--node {taken}: {folder / taken} already exists; it was not overwritten")
    try:
        if hosts:
            _make_server(folder, hosts)
        for name in names:
            _make_node(folder, name)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def check_name(what: str, name: str) -> None:
    """Refuse a name that a node's folder and public key cannot have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) or name == SERVER:
        raise UserError(f"{what}: should be a plain folder name other than {SERVER}")


def check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host) or len(host) > 253:
            raise UserError(f"--host {host}: should be a host's name or IP address, without a port") from None


def _make_server(folder: Path, hosts: list[str]) -> None:
    from thistle.deploy import pki

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; nothing was overwritten")
    server = folder / SERVER
    for path in (folder, server, server / "nodes"):
        path.mkdir(mode=0o700, parents=path == folder, exist_ok=path == folder)
    folder.chmod(0o700)
    authority = pki.make_authority()
    certificate, key = pki.make_server(authority, hosts)
    pki.write_secret(folder / "ca.key", pki.private_pem(authority.key))
    pki.write_public(folder / "ca.crt", authority.pem)
    pki.write_public(server / "ca.crt", authority.pem)
    pki.write_public(server / "server.pem", certificate)
    pki.write_secret(server / "server.key", key)
    tell(f"{server}: for the server, called {', '.join(hosts)}")
    tell(f"{folder / 'ca.key'}: keep it offline; do not copy it to any host. It renews the server's certificate")


def _make_node(folder: Path, name: str) -> None:
    from thistle.deploy import pki

    private, public = pki.make_node_key()
    (folder / name).mkdir(mode=0o700)
    shutil.copyfile(folder / "ca.crt", folder / name / "ca.crt")
    pki.write_secret(folder / name / "node.key", private)
    pki.write_public(folder / SERVER / "nodes" / f"{name}.pub", public)
    tell(f"{folder / name}: for the node {name}")


def tell(line: str) -> None:
    """What was made, and for whom."""
    results.print(line, markup=False, soft_wrap=True)
