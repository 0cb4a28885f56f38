"""The cache among crashes, races, damage and full disks."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from thistle.experiments.errors import UserError
from thistle.tasks.sources.cache import ARRAYS, Workspace, cache_dir, cached

PIXELS = np.arange(5 * 3 * 4 * 4, dtype=np.uint8).reshape(5, 3, 4, 4)
LABELS = np.array([0, 1, 1, 0, 1])


def store(work: Workspace) -> tuple[str, ...]:
    work.put("train", PIXELS, LABELS)
    work.put("test", PIXELS[:0], LABELS[:0])
    return ("a", "b")


def never(work: Workspace) -> tuple[str, ...]:
    raise AssertionError("read although it was cached")


def entry_of(cache: Path) -> Path:
    (entry,) = (path for path in cache.iterdir() if path.is_dir())
    return entry


def test_written_once_then_mapped(cache: Path) -> None:
    cached("x", 1, store)
    dataset = cached("x", 1, never)
    assert dataset.name == "x"
    assert dataset.classes == ("a", "b")
    assert isinstance(dataset.train.pixels, np.memmap)
    assert not dataset.train.pixels.flags.writeable
    np.testing.assert_array_equal(dataset.train.pixels, PIXELS)
    np.testing.assert_array_equal(dataset.train.labels, LABELS)
    assert dataset.train.labels.dtype == np.int64
    assert dataset.test.pixels.shape == (0, 3, 4, 4)
    assert sorted(path.name for path in entry_of(cache).iterdir()) == sorted([*ARRAYS, "meta.json"])


def test_another_identity_is_another_entry(cache: Path) -> None:
    cached("folder:/some/My set.tar.xz", 1, store)
    assert entry_of(cache).name.startswith("my-set-")
    with pytest.raises(AssertionError):
        cached("folder:/some/My set.tar.xz", 2, never)


@pytest.mark.parametrize("file", [*ARRAYS, "meta.json"])
def test_a_damaged_entry_is_rebuilt(cache: Path, file: str) -> None:
    cached("x", 1, store)
    path = entry_of(cache) / file
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(cached("x", 1, store).train.pixels, PIXELS)
    path.unlink()
    np.testing.assert_array_equal(cached("x", 1, store).train.pixels, PIXELS)
    cached("x", 1, never)


def test_a_failed_reader_leaves_nothing(cache: Path) -> None:
    def fail(work: Workspace) -> tuple[str, ...]:
        store(work)
        raise UserError("no good")

    with pytest.raises(UserError, match="no good"):
        cached("x", 1, fail)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def _crash(identity: int) -> None:
    def read(work: Workspace) -> tuple[str, ...]:
        store(work)
        (work.scratch() / "unpacked").write_bytes(b"x")
        os._exit(1)

    cached("x", identity, read)


def test_a_killed_writer_is_swept_up(cache: Path) -> None:
    for identity in (1, 2):
        process = multiprocessing.get_context("fork").Process(target=_crash, args=(identity,))
        process.start()
        process.join()
    assert len(list(cache.glob("*.tmp"))) >= 1
    cached("x", 1, store)
    assert not list(cache.glob("*.tmp"))
    cached("x", 1, never)


def test_a_live_writer_is_left_alone(cache: Path) -> None:
    cache.mkdir()
    (cache / "y-1.tmp").mkdir()
    with (cache / "y-1.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cached("x", 1, store)
        assert (cache / "y-1.tmp").is_dir()


def _race(start: Barrier, log: str, failed: str) -> None:
    def read(work: Workspace) -> tuple[str, ...]:
        with open(log, "a") as file:
            file.write("read\n")
        time.sleep(0.3)
        return store(work)

    start.wait()
    if not np.array_equal(cached("x", 1, read).train.pixels, PIXELS):
        Path(failed).touch()


def test_of_ten_processes_one_decodes(cache: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, log, failed = context.Barrier(10), tmp_path / "log", tmp_path / "failed"
    processes = [context.Process(target=_race, args=(start, str(log), str(failed))) for _ in range(10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=240)
    assert [process.exitcode for process in processes] == [0] * 10
    assert log.read_text() == "read\n"
    assert not failed.exists()


def test_an_unwritable_cache_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("THISTLE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot be written .*THISTLE_CACHE"):
        cached("x", 1, store)


def test_a_full_disk_is_an_error_not_a_crash(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match="No space left"):
        cached("x", 1, store)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THISTLE_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("THISTLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "thistle" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "thistle" / "data"
