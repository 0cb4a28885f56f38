"""The run folder: the product's interface to the outside. Names, formats, atomic writes.

experiment.toml     every key, resolved        metrics.jsonl    one line per round
environment.json    versions, CPU, app hash    verdicts.jsonl   one line per round and sampled client
status.json         running, finished, …       truth.json       who was malicious
checkpoint/         the last two               model.safetensors, summary.json, log.txt
code/               the user's own modules     scheme.json      how sites read their tables
audit.jsonl, replies/   evidence, if the run keeps it
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment, read_file
from thistle.experiments.locks import holding, is_held
from thistle.experiments.plugins import pinned_files, use_code

FORMAT = 2
"""Raised when a reader of an older run folder would misread a newer one. 2: `detection` in two parts."""
COPIES, ELSE = 4, 4 * 2**20
"""Of the model: two checkpoints, one that is being written, the final one. Bytes for the rest: lines and the log."""
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""What a disk says that is full, or at its end."""


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder, and the small files in it."""

    path: Path

    @property
    def experiment(self) -> Path:
        return self.path / "experiment.toml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def verdicts(self) -> Path:
        return self.path / "verdicts.jsonl"

    @property
    def truth(self) -> Path:
        return self.path / "truth.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def scheme(self) -> Path:
        return self.path / "scheme.json"

    @property
    def code(self) -> Path:
        return self.path / "code"

    def secret(self) -> int:
        """The secret that a deployed run draws its noise from; nobody else can read it."""
        path = self.path / "noise.key"
        if not path.is_file():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{secrets.randbits(128)}\n")
        return int(path.read_text(encoding="ascii"))

    @property
    def replies(self) -> Path:
        return self.path / "replies"

    def create(self, again: bool = False) -> None:
        """Make the folder, or say in one line why it cannot be made; a begun run is only continued."""
        if self.metrics.exists() and not again:
            raise UserError(f"run.name = {self.path.name!r}: {self.path} exists; continue it, or choose another name")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise UserError(f"run.out: cannot write to {self.path}: {error.strerror}") from None

    def check_room(self, model: int) -> None:
        """Refuse a run that would fill the disk: checkpoints and the end need copies of a model of this size."""
        needed, free = COPIES * model + ELSE, shutil.disk_usage(self.path).free
        if free < needed:
            raise UserError(
                f"run.out: {free / 2**20:.0f} MiB are free at {self.path}, this run needs at least "
                f"{needed / 2**20:.0f}: make room, or choose another folder"
            )

    def held(self) -> AbstractContextManager[None]:
        """Only one process works on a run."""
        return holding(self.path, "this run has not ended yet")

    def is_held(self) -> bool:
        """Whether a living process works on this run."""
        return is_held(self.path)

    def wait_until_free(self, patience: float = 5.0) -> None:
        """A process that was killed takes a moment to end; UserError where one goes on working after `patience`."""
        deadline = time.monotonic() + patience
        while self.is_held():
            if time.monotonic() > deadline:
                raise UserError(f"{self.path}: this run has not ended yet")
            time.sleep(0.1)

    def save_experiment(self, experiment: Experiment) -> None:
        """Every key, as a new run would want it, and the modules of the user's that they name."""
        keys = {**experiment.flat(), "run.resume": False, "run.until": 0}
        use_code(self.code)
        for (_, name), content in pinned_files(keys).items():
            self.code.mkdir(exist_ok=True)
            write_atomically(self.code / name, content)
        write_atomically(self.experiment, tomli_w.dumps(nest(keys)).encode())

    def load_experiment(self) -> Experiment:
        if not self.experiment.is_file():
            raise UserError(f"{self.path}: not a run folder (it has no experiment.toml)")
        use_code(self.code)
        return Experiment.of(read_file(self.experiment))

    def set_status(self, status: str, **more: Any) -> None:
        """How the run is. On a full disk the old status gives its place to the new one, if that fits in."""
        document = _encoded({"format": FORMAT, "status": status, **more})
        try:
            write_atomically(self.status, document)
        except OSError:
            with suppress(OSError), self.status.open("r+b") as file:
                file.write(document)
                file.truncate()

    def get_status(self) -> dict[str, Any]:
        """The last status written; empty where there is none yet."""
        return read_json(self.status) if self.status.is_file() else {}


def detection_parts(found: Mapping[str, Any]) -> dict[str, Any]:
    """`detection` of a run folder by part, filter and whole. Format 1 had the whole alone, and no name for it."""
    if "whole" not in found:
        return {"whole": {name: value for name, value in found.items() if name != "failed_attackers"}}
    return {part: found[part] for part in ("filter", "whole") if isinstance(found.get(part), dict)}


def utc_now() -> str:
    """The time in the format of every line of a run: 2026-03-01T09:30:00.250Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as tables (plain keys first, as TOML wants them)."""
    tree: dict[str, Any] = {key: value for key, value in flat.items() if "." not in key}
    for key, value in flat.items():
        section, dot, name = key.partition(".")
        if dot:
            tree.setdefault(section, {})[name] = value
    return tree


def write_atomically(path: Path, content: bytes) -> None:
    """The file is the old one or the new one, never half of either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, _encoded(value))


def _encoded(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def disk_fault(error: BaseException, path: Path) -> UserError | None:
    """What to tell the user of a disk that takes no more; None: it is another error."""
    if not isinstance(error, OSError) or error.errno not in DISK:
        return None
    return UserError(
        f"run.out: cannot write to {path}: {error.strerror}; fix that, then continue with: thistle resume {path}"
    )


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file; a last line cut off by a crash is passed over."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(value, dict):
                yield value
