"""What keeps a federation from starting, found before it starts: one finding per line, with what to do."""

from __future__ import annotations

import email.utils
import http.client
import json
import shutil
import socket
import ssl
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thistle.deploy.gateway import find_nginx
from thistle.deploy.programs import supernode
from thistle.deploy.state import State
from thistle.deploy.versions import PACKAGES, versions
from thistle.experiments.errors import UserError
from thistle.flower_compat.fleet import AHEAD, BEHIND
from thistle.protocol.text import printable
from thistle.terminal.addresses import parse_address

PATIENCE = 10.0
SOON = 30 * 86400.0
"""Seconds before its end in which a certificate should be renewed."""


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    what: str
    well: bool
    text: str


def examine_node(server: str, folder: Path, data: str) -> Iterator[Finding]:
    """From a node's machine; stops where the next question makes no sense."""
    yield check_files(folder, ("ca.crt", "node.key"), secret="node.key")
    host, port = parse_address("--server", server)
    reached = check_port(host, port)
    yield reached
    if data:
        yield check_data(data)
    if not reached.well or not (folder / "ca.crt").is_file():
        return
    answer = ask(host, port, folder / "ca.crt")
    if isinstance(answer, Finding):
        yield answer
        return
    yield Finding("certificate", True, f"the server's certificate is from this CA and for {host}")
    date, body = answer
    yield check_clock(date)
    yield check_versions(body)
    if (folder / "node.key").is_file():
        yield check_admission(server, folder)


def examine_server(folder: Path, state: State, listen: str) -> Iterator[Finding]:
    """On the server's machine."""
    yield check_files(folder, ("ca.crt", "server.pem", "server.key"), secret="server.key")
    yield check_certificate(folder)
    nginx = find_nginx()
    yield Finding("gateway", bool(nginx), nginx or "nginx is not installed: apt install nginx")
    if state.is_held():
        yield Finding("server", True, f"running, with its state in {state.path}")
    else:
        yield check_free(listen)
    free = shutil.disk_usage(_existing(state.path)).free / 2**30
    yield Finding("disk", free > 5, f"{free:.1f} GiB free at {state.path}" + ("" if free > 5 else ": make room"))
    yield Finding("versions", True, _shown(versions()))


def check_files(folder: Path, names: tuple[str, ...], secret: str) -> Finding:
    for name in names:
        if not (folder / name).is_file():
            return Finding("files", False, f"{folder} has no {name}: use the folder that thistle certs made")
    if stat.S_IMODE((folder / secret).stat().st_mode) & 0o077:
        return Finding("files", False, f"{folder / secret} can be read by others: chmod 600 {folder / secret}")
    return Finding("files", True, str(folder))


def check_port(host: str, port: int) -> Finding:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        return Finding("port", False, f"{host}:{port}: {error}: is the server running? Is there a firewall?")
    return Finding("port", True, f"{host}:{port} answers")


def ask(host: str, port: int, ca: Path) -> tuple[str, bytes] | Finding:
    """The gateway's date and what it reports about itself; or what is wrong with its certificate."""
    connection = http.client.HTTPSConnection(
        host, port, timeout=PATIENCE, context=ssl.create_default_context(cafile=ca)
    )
    try:
        connection.request("GET", "/thistle")
        response = connection.getresponse()
        return response.headers.get("date", ""), response.read(10_000)
    except ssl.SSLCertVerificationError as error:
        return Finding(
            "certificate", False, f"{error.verify_message}: wrong ca.crt, or a name that is not in the certificate"
        )
    except (OSError, http.client.HTTPException) as error:
        return Finding("certificate", False, f"no TLS at {host}:{port}: {printable(error)}")
    finally:
        connection.close()


def check_clock(date: str) -> Finding:
    try:
        ahead = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return Finding("clock", False, "the server does not report its time")
    well = -BEHIND < ahead < AHEAD
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    return Finding("clock", well, text if well else f"{text}: the server refuses this; set the clock (NTP)")


def check_versions(body: bytes) -> Finding:
    try:
        theirs = {name: str(json.loads(body)[name]) for name in PACKAGES}
    except (ValueError, KeyError, TypeError):
        return Finding(
            "versions", False, "the server does not report them: is this the gateway of thistle deploy server?"
        )
    ours = versions()
    differ = [
        f"{name} {ours[name]}, there {printable(theirs[name], 30)}" for name in PACKAGES if ours[name] != theirs[name]
    ]
    return Finding(
        "versions", not differ, "; ".join(differ) + ": install the same versions" if differ else _shown(ours)
    )


def check_admission(server: str, folder: Path) -> Finding:
    """Start the node briefly: the only way to find out whether the server accepts its key."""
    with tempfile.TemporaryDirectory(prefix="thistle-") as scratch:
        state = State(Path(scratch) / "node")
        state.create()
        node = supernode("doctor", state, server, 'role="honest"', folder / "ca.crt", folder / "node.key")[0]
        node.start()
        deadline = time.monotonic() + 60
        try:
            while time.monotonic() < deadline and node.process is not None:
                if node.sign in node.said():
                    return Finding("key", True, "the server accepts it")
                if node.process.poll() is not None:
                    return Finding("key", False, node.explain(node.said()))
                time.sleep(0.2)
            return Finding("key", False, "no answer within 60 s")
        finally:
            node.ask_to_end()
            node.end(10.0)


def check_data(data: str) -> Finding:
    from thistle.tasks.sources import read_source
    from thistle.tasks.sources.table import columns_of, is_table

    try:
        if is_table(data):  # which column has the class, only the experiment says
            return Finding("data", True, f"a table with the columns {', '.join(columns_of(data))}")
        images = read_source(data, need_test=False, key="--data").train
    except UserError as error:
        return Finding("data", False, str(error))
    return Finding("data", True, f"{len(images.labels)} images of {'×'.join(map(str, images.shape))}")


def check_certificate(folder: Path) -> Finding:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        own = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        own.verify_directly_issued_by(authority)
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        return Finding("certificate", False, f"{printable(error) or 'not signed by ca.crt'}: thistle certs makes one")
    left = own.not_valid_after_utc.timestamp() - time.time()
    if left < 0:
        return Finding("certificate", False, "it has expired: thistle certs renew DIR makes a new one")
    known = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    if not {"127.0.0.1", "localhost"} <= set(known):
        return Finding("certificate", False, "127.0.0.1 and localhost are not among its names: the server needs both")
    soon = ": renew it soon (thistle certs renew DIR)" if left < SOON else ""
    return Finding("certificate", True, f"for {', '.join(known)}; {left / 86400:.0f} days left{soon}")


def check_free(listen: str) -> Finding:
    """Whether the gateway could listen there."""
    host, port = parse_address("--listen", listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host.strip("*"), port), family=family):
            return Finding("port", True, f"{listen} is free")
    except OSError as error:
        return Finding("port", False, f"{listen}: {error.strerror}: choose another --listen")


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _shown(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.items())
