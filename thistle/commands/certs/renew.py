"""`thistle certs renew`: a new server certificate for another year, from the CA that the nodes already trust."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.certs.make import SERVER, check_host, tell
from thistle.experiments.errors import UserError


def renew(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder made by thistle certs, with ca.key.")],
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="Another name of the server; may be repeated.")
    ] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Also make a new private key for the server.")] = False,
) -> None:
    """Replace the server's certificate; keys and certificates of nodes stay as they are."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    from thistle.deploy import pki
    from thistle.experiments.runfolder import write_atomically

    for host in hosts or []:
        check_host(host)
    place, authority = folder / SERVER / "server.pem", pki.read_authority(folder)
    if pki.days_left(folder / "ca.crt") <= 0:
        raise UserError(
            f"{folder}: its CA has expired: every host needs new files; make them with thistle certs NEWDIR"
        )
    try:
        old = pki.read_certificate(place)
        names = list(dict.fromkeys([*pki.names_of(old), *(hosts or [])]))
    except (OSError, ValueError, x509.ExtensionNotFound):
        raise UserError(f"{place}: there is no certificate to renew; make one with thistle certs NEWDIR") from None
    key = old.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    if new_key:
        certificate, private = pki.make_server(authority, names)
        (folder / SERVER / "server.key").unlink(missing_ok=True)
        pki.write_secret(folder / SERVER / "server.key", private)
    else:
        certificate = pki.certify(authority, names, key)
    write_atomically(place, certificate)
    place.chmod(0o644)
    tell(f"{place}: for {', '.join(names)}; valid for {pki.days_left(place):.0f} days")
    files = "server.pem and server.key" if new_key else "server.pem (its key has not changed)"
    tell(f"copy {files} to the server and restart thistle deploy server; the nodes need no change")
