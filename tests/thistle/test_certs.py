"""`thistle certs`: what each host gets, who may read it, and that nothing is overwritten."""

from __future__ import annotations

import datetime
import ipaddress
import re
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key, load_ssh_public_key

from tests.thistle.test_cli import thistle
from thistle.commands.certs.make import make as certs
from thistle.commands.certs.renew import renew
from thistle.experiments.errors import UserError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki") / "federation"
    certs(folder, ["fl.example.org", "10.77.0.1"], ["alpha", "beta"])
    return folder


def test_each_host_gets_exactly_its_files(made: Path) -> None:
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    server = {
        "server/ca.crt",
        "server/server.pem",
        "server/server.key",
        "server/nodes/alpha.pub",
        "server/nodes/beta.pub",
    }
    nodes = {"alpha/ca.crt", "alpha/node.key", "beta/ca.crt", "beta/node.key"}
    assert files == {"ca.crt", "ca.key"} | server | nodes


def test_secrets_are_for_their_owner_only(made: Path) -> None:
    modes = {path.relative_to(made).name: stat.S_IMODE(path.stat().st_mode) for path in made.rglob("*")}
    assert {modes[name] for name in ("ca.key", "server.key", "node.key")} == {0o600}
    assert {modes[name] for name in ("alpha", "beta", "server", "nodes")} == {0o700}
    assert {modes[name] for name in ("ca.crt", "server.pem", "alpha.pub")} == {0o644}


def test_the_server_is_known_by_its_names_and_to_itself(made: Path) -> None:
    authority = x509.load_pem_x509_certificate((made / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((made / "server" / "server.pem").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    addresses = [ipaddress.ip_address(text) for text in ("10.77.0.1", "127.0.0.1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    key = load_pem_private_key((made / "server" / "server.key").read_bytes(), None)
    assert key.public_key() == certificate.public_key()
    assert certificate.not_valid_before_utc < datetime.datetime.now(datetime.UTC) < certificate.not_valid_after_utc
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_node_keys_are_of_the_kind_that_flower_takes(made: Path) -> None:
    private = load_ssh_private_key((made / "alpha" / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp384r1"
    assert private.public_key() == load_ssh_public_key((made / "server" / "nodes" / "alpha.pub").read_bytes())
    assert (made / "alpha" / "node.key").read_bytes() != (made / "beta" / "node.key").read_bytes()


@pytest.mark.parametrize(
    ("hosts", "nodes", "reason"),
    [
        (["other"], None, "already holds"),
        (None, ["alpha"], "not overwritten"),
        (None, ["server"], "plain folder name"),
        (None, ["../x"], "plain folder name"),
        (["a b"], None, "host's name"),
        (["host:8443"], None, "without a port"),
    ],
)
def test_what_cannot_be_done_is_said(made: Path, hosts: list[str], nodes: list[str], reason: str) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=reason):
        certs(made, hosts, nodes)
    assert before == {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}


def test_a_folder_without_a_ca_wants_a_server(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--host"):
        certs(tmp_path / "new", None, ["alpha"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        certs(tmp_path / "full", ["host"], None)


def test_further_nodes_are_added_later(tmp_path: Path) -> None:
    made = thistle("certs", "pki", "--host", "fl.example.org", cwd=tmp_path)
    assert made.returncode == 0 and "for the server" in made.stdout
    assert thistle("certs", "pki", "--node", "late", cwd=tmp_path).returncode == 0
    assert (tmp_path / "pki" / "late" / "node.key").is_file() and (tmp_path / "pki" / "late" / "ca.crt").is_file()
    again = thistle("certs", "pki", "--node", "late", cwd=tmp_path)
    assert again.returncode == 2 and "not overwritten" in again.stderr


def test_no_key_is_in_the_repository() -> None:
    root = Path(__file__).resolve().parents[2]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    mark = b" PRIVATE " + b"KEY-----"
    files = [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    assert files and not [path for path in files if mark in path.read_bytes()]


def test_a_site_makes_its_own_key_and_the_server_accepts_it(made: Path, tmp_path: Path) -> None:
    done = thistle("certs", "request", "north", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((tmp_path / "north" / "node.key").stat().st_mode) == 0o600
    request = tmp_path / "north" / "request.csr"
    signed = thistle("certs", "sign", str(made / "server"), str(request), cwd=tmp_path)
    assert signed.returncode == 0, signed.stderr
    public = made / "server" / "nodes" / "north.pub"
    private = load_ssh_private_key((tmp_path / "north" / "node.key").read_bytes(), None)
    assert load_ssh_public_key(public.read_bytes()) == private.public_key()
    (mark,) = set(re.findall(r"SHA256:\S{43}", done.stdout + signed.stdout))
    assert mark in signed.stdout, "both ends see the same fingerprint"
    again = thistle("certs", "sign", str(made), str(request), cwd=tmp_path)
    assert again.returncode == 2 and "not overwritten" in again.stderr
    text = request.read_text().splitlines()
    forged = text[5][:10] + ("A" if text[5][10] != "A" else "B") + text[5][11:]
    request.write_text("\n".join([*text[:5], forged, *text[6:]]))
    refused = thistle("certs", "sign", str(made), str(request), cwd=tmp_path)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1 and str(request) in refused.stderr


def test_a_certificate_is_renewed_for_the_same_names_and_key(tmp_path: Path) -> None:
    home = tmp_path / "pki"
    certs(home, ["fl.example.org"], ["alpha"])
    before = x509.load_pem_x509_certificate((home / "server" / "server.pem").read_bytes())
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and path.name != "server.pem"}
    renew(home, ["new.example.org"])
    after = x509.load_pem_x509_certificate((home / "server" / "server.pem").read_bytes())
    after.verify_directly_issued_by(x509.load_pem_x509_certificate((home / "ca.crt").read_bytes()))
    assert after.serial_number != before.serial_number and after.public_key() == before.public_key()
    names = after.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost", "new.example.org"]
    assert {path: path.read_bytes() for path in files} == files, "the nodes need no change"
    renew(home, None, new_key=True)
    key = load_pem_private_key((home / "server" / "server.key").read_bytes(), None)
    newest = x509.load_pem_x509_certificate((home / "server" / "server.pem").read_bytes())
    assert key.public_key() == newest.public_key() != after.public_key()


def test_what_cannot_be_renewed(made: Path, tmp_path: Path) -> None:
    for folder, reason in ((tmp_path, "has no CA"), (made / "server", "has no CA")):
        with pytest.raises(UserError, match=reason):
            renew(folder)
    (tmp_path / "ca.key").write_bytes((made / "ca.key").read_bytes())
    (tmp_path / "ca.crt").write_bytes((made / "ca.crt").read_bytes())
    with pytest.raises(UserError, match="no certificate to renew"):
        renew(tmp_path)
