"""Labelled images out of a folder or an archive, read as if a stranger with bad intentions had made it.

The layout is `train|test/<class>/<image>`, in at most one wrapping folder. Nothing is ever extracted
to disk. Paths that leave the archive, links and devices, bombs and damaged archives are refused in
one line that names the archive and the member.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NoReturn, cast

from thistle.experiments.errors import UserError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".zip")
SPLITS = ("train", "test")
DEPTH = 4  # wrapping folder, split, class, image
BLOCK = tarfile.BLOCKSIZE
CLUTTER = ("__MACOSX", "Thumbs.db", "desktop.ini")


@dataclass(frozen=True)
class Limits:
    """What an honest archive stays below; bytes are counted decompressed."""

    member_bytes: int = 64 * 2**20
    total_bytes: int = 64 * 2**30
    members: int = 2_000_000


@dataclass(frozen=True)
class Entry:
    """One image file, not decoded."""

    split: str
    label: str
    name: str
    data: bytes


@dataclass(frozen=True)
class _Member:
    """Anything found in an archive, before it is trusted. `read` gives at most one byte more than allowed."""

    name: str
    kind: str  # "file", "folder" or "other"
    size: int
    read: Callable[[], bytes]


def entries(path: Path, limits: Limits | None = None) -> Iterator[Entry]:
    """Every image file of the folder or archive, in the order in which it is stored there.

    A compressed tar can only be read from front to back, so sorting is left to the caller: `order`.
    """
    if not path.exists():
        raise UserError(f"{path}: no such folder or archive")
    if not path.is_dir() and not path.name.lower().endswith(SUFFIXES):
        raise UserError(f"{path}: neither a folder nor an archive ({' '.join(SUFFIXES)})")
    try:
        yield from _checked(path, limits or Limits())
    except UserError:
        raise
    except Exception as error:  # whatever a parser stumbles over, the user's archive is the reason
        raise UserError(f"{path}: cannot be read, damaged or truncated ({error or type(error).__name__})") from error


def order(entry_label: str, entry_name: str) -> tuple[str, str, str]:
    """Sort key: class name, then file name with its numbers in natural order (2 before 10)."""
    return entry_label, re.sub(r"[0-9]+", lambda digits: digits[0].zfill(32), entry_name), entry_name


def fingerprint(path: Path) -> list[list[str | int]]:
    """Name, size and time of change of the archive, or of every file of the folder: what a cache is keyed by."""
    if not path.is_dir():
        return [_stamp(path, str(path.resolve()))]
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return [[str(path.resolve()), 0, 0], *(_stamp(file, str(file.relative_to(path))) for file in sorted(files))]


def _stamp(file: Path, name: str) -> list[str | int]:
    try:
        status = file.stat()
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error
    return [name, status.st_size, status.st_mtime_ns]


def _checked(path: Path, limits: Limits) -> Iterator[Entry]:
    """The members that are images, after every check that can be made without decoding them."""
    seen: set[str] = set()
    wraps: set[str] = set()
    total = 0
    for count, member in enumerate(_members(path, limits), start=1):
        parts = _safe_parts(path, member)
        if count > limits.members:
            _refuse(path, member.name, f"more than {limits.members} members")
        if member.kind == "folder" or _is_clutter(parts):
            continue
        split, label, name = _place(path, member.name, parts, wraps)
        total += member.size
        if member.size > limits.member_bytes or total > limits.total_bytes:
            _refuse(path, member.name, f"too large (limits: {limits.member_bytes} bytes, {limits.total_bytes} in all)")
        if name in seen:
            _refuse(path, member.name, "there twice")
        seen.add(name)
        data = member.read()
        if len(data) != member.size:
            _refuse(path, member.name, f"holds more or less than the {member.size} bytes it declares")
        yield Entry(split, label, name, data)


def _refuse(path: Path, name: str, why: str) -> NoReturn:
    raise UserError(f"{path}: member {name[:200]!r} refused: {why}")


def _safe_parts(path: Path, member: _Member) -> list[str]:
    """The member's path, split. Refused: a way out of the archive, anything but files and folders, odd characters."""
    name = member.name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\\" in name or re.match(r"[A-Za-z]:", name):
        _refuse(path, name, "its path leads out of the archive")
    if member.kind == "other":
        _refuse(path, name, "a link or device; only plain files and folders are read")
    if not name.isprintable():
        _refuse(path, name, "unprintable characters in its name")
    return parts


def _is_clutter(parts: list[str]) -> bool:
    """What file managers leave behind: skipped."""
    return any(part.startswith(".") or part in CLUTTER for part in parts)


def _place(path: Path, name: str, parts: list[str], wraps: set[str]) -> tuple[str, str, str]:
    """Split, class and name without the wrapping folder, of which there is one for all or none."""
    wraps.add(parts[0] if len(parts) == DEPTH else "")
    if len(parts) not in (DEPTH - 1, DEPTH) or parts[-3] not in SPLITS or len(wraps) > 1:
        _refuse(path, name, "not laid out as train|test/<class>/<image>, in one wrapping folder at most")
    return parts[-3], parts[-2], "/".join(parts[-3:])


def _members(path: Path, limits: Limits) -> Iterator[_Member]:
    if path.is_dir():
        return _folder_members(path, path.resolve(), "")
    return _zip_members(path, limits) if path.name.lower().endswith(".zip") else _tar_members(path, limits)


def _folder_members(folder: Path, root: Path, prefix: str) -> Iterator[_Member]:
    """A folder on disk. Links are followed as long as they stay inside of it."""
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        name = prefix + item.name
        if item.is_symlink() and not Path(item.path).resolve().is_relative_to(root):
            raise UserError(f"{root}: {name!r} refused: a link that leads out of the folder")
        if item.is_dir() and not _is_clutter([item.name]):
            if name.count("/") >= DEPTH - 1:
                _refuse(root, name, "folders nested too deep for train|test/<class>/<image>")
            yield from _folder_members(Path(item.path), root, name + "/")
        elif not item.is_dir():
            kind = "file" if item.is_file() else "other"
            yield _Member(name, kind, item.stat().st_size if kind == "file" else 0, Path(item.path).read_bytes)


def _zip_members(path: Path, limits: Limits) -> Iterator[_Member]:
    """A zip. Sizes in its headers are claims: reading stops one byte after what is claimed and allowed."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16  # 0 when made on a system without Unix modes
            plain = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR)
            kind = "folder" if info.is_dir() else "file"
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # Python decompresses these in one piece, however large it gets.
                _refuse(path, info.filename, "compressed by bzip2 or lzma; only stored and deflated members are read")
            read = partial(_zip_data, archive, info, limits)
            yield _Member(info.filename, kind if plain else "other", info.file_size, read)


def _zip_data(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: Limits) -> bytes:
    with archive.open(info) as file:
        return file.read(limits.member_bytes + 1)


class _Bounded:
    """A decompressed tar stream that refuses to be a bomb, and remembers the block at which tarfile stopped."""

    def __init__(self, path: Path, stream: IO[bytes], limits: Limits) -> None:
        self.path, self.stream, self.limits = path, stream, limits
        self.last = b""
        self.tell = stream.tell
        self.step = min(2**20, limits.member_bytes)

    def read(self, size: int) -> bytes:
        """Read, but neither an oversized piece (a header may ask for one, too) nor beyond the limit for all."""
        if size > self.limits.member_bytes + BLOCK or self.tell() > self.limits.total_bytes:
            raise UserError(f"{self.path}: refused: decompresses to more than the limits allow")
        self.last = self.stream.read(size)
        return self.last

    def seek(self, position: int) -> int:
        """Skip forward by reading, so that skipped bytes count."""
        while (gap := position - self.tell()) > 0 and self.read(min(gap, self.step)):
            pass
        return self.stream.seek(position) if gap < 0 else self.tell()


def _decompressed(path: Path) -> IO[bytes]:
    name = path.name.lower()
    if name.endswith(".xz"):
        return cast(IO[bytes], lzma.open(path))
    return cast(IO[bytes], gzip.open(path)) if name.endswith("gz") else path.open("rb")


def _tar_members(path: Path, limits: Limits) -> Iterator[_Member]:
    """A tar, compressed or not, from front to back."""
    with _decompressed(path) as stream:
        bounded = _Bounded(path, stream, limits)
        with tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r:") as archive:
            while info := archive.next():
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every member it has seen
                plain = info.isreg() and not info.issparse()
                kind = "folder" if info.isdir() else "file" if plain else "other"
                yield _Member(info.name, kind, info.size, partial(_tar_data, archive, info))
        # tarfile takes a torn or garbled header for the end; the true end is a block of zeros.
        if bounded.last != bytes(BLOCK):
            raise UserError(f"{path}: cannot be read, damaged or truncated (no end of archive)")
        while bounded.read(bounded.step):  # the compressor's own check sum comes last
            pass


def _tar_data(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    return file.read() if file else b""
