"""Archives as strangers make them: well laid out ones are read, all others refused in one line."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from thistle.experiments.errors import UserError
from thistle.tasks.sources.archive import Entry, Limits, entries, fingerprint, order

GOOD = {
    "train/cat/10.png": b"c10",
    "train/cat/2.png": b"c2",
    "train/ant/1.png": b"a1",
    "test/cat/1.png": b"t1",
}
KINDS = ("folder", "a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.zip")


def make(tmp_path: Path, kind: str, files: Mapping[str, bytes]) -> Path:
    path = tmp_path / kind
    if kind == "folder":
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    elif kind.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        mode = {".gz": "w:gz", "tgz": "w:gz", ".xz": "w:xz"}.get(kind[-3:], "w")
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            for name, data in files.items():
                add(archive, name, data)
    return path


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    archive.addfile(info, io.BytesIO(data))


def refused(path: Path, *words: str, limits: Limits | None = None) -> None:
    with pytest.raises(UserError) as caught:
        list(entries(path, limits))
    text = str(caught.value)
    assert "\n" not in text
    for word in (path.name, *words):
        assert word in text


@pytest.mark.parametrize("wrap", ["", "./", "wrap/", "train/"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_entries(tmp_path: Path, kind: str, wrap: str) -> None:
    path = make(tmp_path, kind, {wrap + name: data for name, data in GOOD.items()})
    found = sorted(entries(path), key=lambda entry: (entry.split, order(entry.label, entry.name)))
    assert found == [
        Entry("test", "cat", "test/cat/1.png", b"t1"),
        Entry("train", "ant", "train/ant/1.png", b"a1"),
        Entry("train", "cat", "train/cat/2.png", b"c2"),
        Entry("train", "cat", "train/cat/10.png", b"c10"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_clutter_is_skipped(tmp_path: Path, kind: str) -> None:
    clutter = [".DS_Store", "train/.DS_Store", "train/cat/._1.png", "train/cat/Thumbs.db", "__MACOSX/train/cat/1.png"]
    path = make(tmp_path, kind, {**GOOD, **dict.fromkeys(clutter, b"x")})
    assert {entry.name for entry in entries(path)} == set(GOOD)


@pytest.mark.parametrize("name", ["../train/cat/1.png", "train/../../cat/1.png", "/train/cat/1.png", "C:/train/cat/1"])
@pytest.mark.parametrize("kind", ["a.tar", "a.tar.xz", "a.zip"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    refused(make(tmp_path, kind, {**GOOD, name: b"x"}), name, "leads out")


@pytest.mark.parametrize(
    "name", ["readme.txt", "train/1.png", "train/cat/deep/er/1.png", "valid/cat/1.png", "w/train/x/1"]
)
@pytest.mark.parametrize("kind", ["folder", "a.tar", "a.zip"])
def test_another_layout_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    refused(make(tmp_path, kind, {**GOOD, name: b"x"}), "train|test/<class>/<image>")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "train/cat/odd.png", kind=kind, link="/etc/passwd")
    refused(path, "train/cat/odd.png", "link or device")


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("train/cat/odd.png")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    refused(tmp_path / "a.zip", "train/cat/odd.png", "link or device")


def test_links_in_a_folder_must_stay_inside(tmp_path: Path) -> None:
    path = make(tmp_path, "folder", GOOD)
    (path / "train/cat/3.png").symlink_to(path / "train/cat/2.png")
    assert len(list(entries(path))) == len(GOOD) + 1
    (tmp_path / "secret").write_bytes(b"x")
    (path / "train/cat/4.png").symlink_to(tmp_path / "secret")
    refused(path, "train/cat/4.png", "leads out")


def test_a_linked_folder_outside_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, "folder", GOOD)
    (tmp_path / "elsewhere").mkdir()
    (path / "train/dog").symlink_to(tmp_path / "elsewhere")
    refused(path, "train/dog", "leads out")


def test_a_pipe_in_a_folder_does_not_hang(tmp_path: Path) -> None:
    path = make(tmp_path, "folder", GOOD)
    os.mkfifo(path / "train/cat/pipe.png")
    refused(path, "pipe.png", "link or device")


@pytest.mark.parametrize("kind", KINDS)
def test_limits(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path, kind, {**GOOD, "train/cat/huge.png": bytes(100_000)})
    refused(path, limits=Limits(member_bytes=50_000))
    refused(path, limits=Limits(total_bytes=90_000))
    refused(path, "more than 3 members", limits=Limits(members=3))


def test_a_zip_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, "a.zip", {"train/cat/1.png": bytes(100_000)})
    lie = path.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(lie)
    refused(path)


def test_a_zip_by_bzip2_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("train/cat/1.png", bytes(1000))
    refused(tmp_path / "a.zip", "train/cat/1.png", "bzip2")


def test_a_header_as_bomb_is_refused(tmp_path: Path) -> None:
    """GNU tar's long names are read into memory whole, whatever their size."""
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        add(archive, "././@LongLink", bytes(2**20), tarfile.GNUTYPE_LONGNAME)
        add(archive, "train/cat/1.png", b"x")
    refused(path, "limits", limits=Limits(member_bytes=2**16))


def test_skipped_members_count_too(tmp_path: Path) -> None:
    path = make(tmp_path, "a.tar.xz", {f"train/cat/.hidden{i}": bytes(50_000) for i in range(5)} | GOOD)
    refused(path, "limits", limits=Limits(total_bytes=150_000))


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "train/cat/1.png", b"x")
        add(archive, "train/cat/1.png", b"y")
    refused(tmp_path / "a.tar", "train/cat/1.png", "twice")


def test_terminal_escapes_in_a_name_are_refused_and_not_printed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unprintable") as caught:
        list(entries(make(tmp_path, "a.tar", {"train/c\x1b[31m/1.png": b"x"})))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_truncated_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    noise = {f"train/cat/{i}.png": os.urandom(700) for i in range(8)}
    path = make(tmp_path, kind, noise)
    whole = path.read_bytes()
    end = 17 * 512 if kind == "a.tar" else len(whole) - 1  # a tar is padded with zeros after its end
    for length in sorted({0, 1, 100, 512, *range(1000, end, 512), end - 512, end}):
        path.write_bytes(whole[:length])
        refused(path)


def test_garbage_in_a_later_tar_header_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, "a.tar", GOOD)
    data = bytearray(path.read_bytes())
    data[1024 + 100 : 1024 + 200] = b"\xff" * 100
    path.write_bytes(data)
    refused(path, "damaged")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_garbage_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).write_bytes(os.urandom(3000))
    refused(tmp_path / kind)


def test_missing_or_unknown_files(tmp_path: Path) -> None:
    refused(tmp_path / "no.tar", "no such")
    (tmp_path / "a.rar").write_bytes(b"x")
    refused(tmp_path / "a.rar", ".tar.xz")


def test_fingerprint_notices_every_change(tmp_path: Path) -> None:
    path = make(tmp_path, "folder", GOOD)
    before = fingerprint(path)
    assert fingerprint(path) == before
    os.utime(path / "train/cat/2.png", ns=(1, 1))
    changed = fingerprint(path)
    assert changed != before
    (path / "train/cat/2.png").rename(path / "train/cat/3.png")
    assert fingerprint(path) not in (before, changed)
