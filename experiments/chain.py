"""A log that nobody changes unnoticed: each line is signed and holds the hash of the line before.

audit.jsonl   {"n": 17, "time": …, "event": …, …, "prev": SHA-256 of the line before, "sig": Ed25519 of all before it}
audit.head    how many lines and bytes there are, and the last line's SHA-256, signed: the file cannot lose its tail
audit.key     who can write here (mode 600); audit.pub: who can check it (thistle/audit does, without this file)

Several processes may append. A line is on the disk before the head says so: after a crash in between, the next one
who appends reads on from the head, cuts off a line that was never completed, and says so in a line of its own.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thistle.experiments.errors import UserError
from thistle.experiments.extras import require
from thistle.experiments.runfolder import read_json, write_atomically, write_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PLACE = "THISTLE_AUDIT"
"""In the server's environment: the folder of the federation's log."""
NOTHING = "0" * 64
"""The hash before the first line."""
FIELDS = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Head:
    """Where the log ends."""

    lines: int = 0
    size: int = 0
    sha256: str = NOTHING

    def after(self, line: bytes) -> Head:
        return Head(self.lines + 1, self.size + len(line), hashlib.sha256(line).hexdigest())

    @property
    def signed(self) -> bytes:
        """What the signature is of."""
        return f"{self.lines} {self.size} {self.sha256}".encode()


@dataclass(frozen=True)
class Chain:
    """The log in one folder."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "audit.jsonl"

    @property
    def head(self) -> Path:
        return self.folder / "audit.head"

    def append(self, event: str, **facts: Any) -> None:
        """One more line, or none: an error leaves the log as it was."""
        require("cryptography")
        with self._alone():
            self._write(self._catch_up(), event, facts)

    @cached_property
    def key(self) -> Ed25519PrivateKey:
        """The signing key; made when first needed, with its public half in a file next to it."""
        from cryptography.hazmat.primitives import serialization as pem
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        path = self.folder / "audit.key"
        if not path.is_file():
            if self.log.is_file():
                raise self._broken(f"{path.name} is gone")
            own = Ed25519PrivateKey.generate()
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(own.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
        key = pem.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, Ed25519PrivateKey)
        if not (public := self.folder / "audit.pub").is_file():
            form = pem.PublicFormat.SubjectPublicKeyInfo
            write_atomically(public, key.public_key().public_bytes(pem.Encoding.PEM, form))
        return key

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / "audit.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _catch_up(self) -> Head:
        """The head, moved over whole lines that are behind it; half of one is cut off."""
        head, size = self._read_head(), self.log.stat().st_size if self.log.is_file() else 0
        if size < head.size:
            raise self._broken(f"it has {size} bytes, and had {head.size}")
        if size == head.size:
            return head
        with self.log.open("rb") as file:
            file.seek(head.size)
            *whole, torn = file.read().split(b"\n")
        for line in whole:
            if not self._is_next(line, head):
                raise self._broken(f"line {head.lines + 1} is not the server's")
            head = head.after(line + b"\n")
        if torn:
            os.truncate(self.log, head.size)
            head = self._write(head, "mended", {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()})
        return head

    def _read_head(self) -> Head:
        if not self.head.is_file():
            if self.log.is_file():
                raise self._broken(f"{self.head.name} is gone")
            self._write_head(Head())
        said = read_json(self.head)
        return Head(said["lines"], said["size"], said["sha256"])

    def _write_head(self, head: Head) -> None:
        write_json(self.head, {**vars(head), "sig": self.key.sign(head.signed).hex()})

    def _is_next(self, line: bytes, head: Head) -> bool:
        """Whether we signed it, after the line that the head names."""
        from cryptography.exceptions import InvalidSignature

        body, _, end = line.rpartition(b',"sig":"')
        try:
            self.key.public_key().verify(bytes.fromhex(end.removesuffix(b'"}').decode()), body + b"}")
        except (InvalidSignature, ValueError):
            return False
        return bool(json.loads(body + b"}")["prev"] == head.sha256)

    def _write(self, head: Head, event: str, facts: dict[str, Any]) -> Head:
        """A line and then the head; before the first line one that says whose log this is."""
        if not head.lines and event != "begun":
            raw = self.key.public_key().public_bytes_raw()
            head = self._write(head, "begun", {"format": 1, "key": raw.hex()})
        fields = {"n": head.lines, "time": now(), "event": event, **facts, "prev": head.sha256}
        body = FIELDS.encode(fields).encode()
        line = body[:-1] + b',"sig":"' + self.key.sign(body).hex().encode() + b'"}\n'
        try:
            with self.log.open("ab", buffering=0) as file:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.log))
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.truncate(self.log, head.size)
            raise
        head = head.after(line)
        self._write_head(head)
        return head

    def _broken(self, why: str) -> UserError:
        return UserError(
            f"{self.log}: has been changed: {why}; see thistle audit verify {self.folder}, and move the audit.* files "
            "away to begin a new log"
        )


def now() -> str:
    """UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def user() -> str:
    """Who types: the account, and behind sudo the person's."""
    account, person = getpass.getuser(), os.environ.get("SUDO_USER")
    return f"{person} (as {account})" if person else account


def fingerprint(document: Any) -> str:
    """SHA-256 of a JSON document, whatever the order of its keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
