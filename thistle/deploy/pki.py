"""Keys and certificates of a federation: a CA, the server's certificate, and a key for every node.

Flower wants PEM without a passphrase for TLS (P-256 here) and OpenSSH's format for nodes (P-384).
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thistle.experiments.errors import UserError
from thistle.protocol.text import printable

ALWAYS = ("localhost", "127.0.0.1")
"""The server's own processes reach it by these names."""
CA_DAYS, SERVER_DAYS = 3650, 365
EARLIER = datetime.timedelta(minutes=5)
"""Certificates are valid since then: clocks differ."""


@dataclass(frozen=True)
class Authority:
    """Who signs the server's certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def make_authority() -> Authority:
    """A new CA that may sign servers and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("Thistle federation CA")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def make_server(authority: Authority, names: Sequence[str]) -> tuple[bytes, bytes]:
    """The server's certificate for these names (and this machine's own), and its key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return certify(authority, names, key.public_key()), private_pem(key)


def certify(authority: Authority, names: Sequence[str], key: ec.EllipticCurvePublicKey) -> bytes:
    """A certificate for a server that has this key; never valid for longer than the CA."""
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    every = list(dict.fromkeys([*names, *ALWAYS]))
    builder = (
        _builder(_name(every[0]), authority.certificate.subject, key, SERVER_DAYS, authority.certificate)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in every]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_authority(folder: Path) -> Authority:
    """The CA of `thistle certs`, with its key."""
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = read_certificate(folder / "ca.crt")
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder}: has no CA that can be read ({printable(error)}); name the folder with ca.key"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise UserError(f"{folder}: ca.key is not the key of ca.crt")
    return Authority(key, certificate)


def read_certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names_of(certificate: x509.Certificate) -> list[str]:
    """The hosts that it is for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def days_left(path: Path) -> float:
    """How long a certificate's file is still valid."""
    left = read_certificate(path).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left / datetime.timedelta(days=1)


def make_request(name: str) -> tuple[bytes, bytes]:
    """A node's private key, which stays where it is made, and a request signed by it: proof that the node has it."""
    key = ec.generate_private_key(ec.SECP384R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(name)).sign(key, hashes.SHA384())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, request.public_bytes(Encoding.PEM)


def read_request(path: Path) -> tuple[str, bytes]:
    """The name and the public key (OpenSSH) of a node's request, whose signature was checked."""
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
        signed = request.is_signature_valid
    except (OSError, ValueError, InvalidSignature) as error:
        raise UserError(f"{path}: not a request of thistle certs request: {printable(error)}") from None
    key = request.public_key()
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(f"{path}: not signed by the kind of key that nodes have: ask the site to make it again")
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else "", public_line(key)


def public_line(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def shown_fingerprint(public: bytes) -> str:
    """As `ssh-keygen -l` shows it, to compare by telephone."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def make_node_key() -> tuple[bytes, bytes]:
    """A node's private and public key, as OpenSSH writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, public_line(key.public_key())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_secret(path: Path, content: bytes) -> None:
    """For its owner's eyes only, from the first byte on; never over another file."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def write_public(path: Path, content: bytes) -> None:
    """Never over another file."""
    with path.open("xb") as file:
        file.write(content)
    path.chmod(0o644)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    within: x509.Certificate | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    end = end if within is None else min(end, within.not_valid_after_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
