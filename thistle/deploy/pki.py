"""Keys and certificates of a federation: a CA, the server's certificate, and a key for every node.

Flower wants PEM without a passphrase for TLS (P-256 here) and OpenSSH's format for nodes (P-384).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    every = list(dict.fromkeys([*names, *ALWAYS]))
    builder = (
        _builder(_name(every[0]), authority.certificate.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in every]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
    )
    certificate = builder.sign(authority.key, hashes.SHA256())
    return certificate.public_bytes(Encoding.PEM), private_pem(key)


def make_node_key() -> tuple[bytes, bytes]:
    """A node's private and public key, as OpenSSH writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


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
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
