"""`thistle certs request` at a site, `sign` at the server: a node's private key never leaves the site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.certs.make import SERVER, check_name, tell
from thistle.experiments.errors import UserError

REQUEST = "request.csr"


def request(
    name: Annotated[str, typer.Argument(metavar="NAME", help="This node's name on the server.")],
    folder: Annotated[Path | None, typer.Option("--dir", help="Where to put the key; default: a folder NAME.")] = None,
) -> None:
    """At a site: make this node's key and a request for the server's administrator."""
    from thistle.deploy import pki

    check_name(f"NAME {name}", name)
    place = folder or Path(name)
    if place.exists() and any(place.iterdir()):
        raise UserError(f"{place} is not empty; nothing was overwritten; choose another --dir")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    private, asked = pki.make_request(name)
    pki.write_secret(place / "node.key", private)
    pki.write_public(place / REQUEST, asked)
    _, public = pki.read_request(place / REQUEST)
    tell(f"{place / 'node.key'}: keep it here and show it to no one")
    tell(
        f"{place / REQUEST}: send it to the server's administrator; its fingerprint is {pki.shown_fingerprint(public)}"
    )
    tell(f"you get ca.crt in return: put it into {place}, then: thistle deploy node --server HOST:PORT --certs {place}")


def sign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder made by thistle certs, or its `server`.")],
    file: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request that the site sent: request.csr.")],
) -> None:
    """At the server: accept a site's request, after checking its fingerprint with the site."""
    from thistle.deploy import pki

    home = folder if (folder / "server.pem").is_file() else folder / SERVER
    if not (home / "ca.crt").is_file():
        raise UserError(f"{folder}: not a folder of thistle certs (neither it nor its {SERVER} has ca.crt)")
    name, public = pki.read_request(file)
    check_name(f"{file}: its name {name!r}", name)
    target = home / "nodes" / f"{name}.pub"
    if target.exists():
        raise UserError(f"{target} already exists; it was not overwritten: ask the site to choose another NAME")
    target.parent.mkdir(mode=0o700, exist_ok=True)
    pki.write_public(target, public)
    tell(f"{name}: its fingerprint is {pki.shown_fingerprint(public)}; compare it with the site's, by telephone")
    tell(f"send {home / 'ca.crt'} to the site, and admit it: thistle deploy add-node {target} --clients 0")
