"""Checks an audit log line by line, and the files that it names, with only the public key."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Line = dict[str, Any]


@dataclass
class Run:
    """What led to a run's model: of rounds that were tried again, the last try."""

    start: Line
    rounds: dict[int, Line] = field(default_factory=dict)
    end: Line = field(default_factory=dict)


class Reader:
    """`problems`: what differs from what the server wrote; `notes`: what else an auditor should know."""

    def __init__(self, folder: Path, key: Ed25519PublicKey) -> None:
        self.folder, self.key = folder, key
        self.problems, self.notes, self.runs = list[str](), list[str](), dict[str, Run]()
        *self.whole, self.torn = (folder / "audit.jsonl").read_bytes().split(b"\n")
        self.lines = [self._read(number, raw) for number, raw in enumerate(self.whole)]

    def _read(self, number: int, raw: bytes) -> Line:
        """A line that is signed, and names the one before."""
        body, _, end = raw.rpartition(b',"sig":"')
        try:
            self.key.verify(bytes.fromhex(end.removesuffix(b'"}').decode()), body + b"}")
            line: Line = json.loads(body + b"}")
            if line["n"] != number or line["prev"] != (line_hash(self.whole[number - 1]) if number else "0" * 64):
                self.problems.append(f"line {number + 1}: does not follow the line before it")
            if not number and line.get("key") != self.key.public_bytes_raw().hex():
                self.problems.append("line 1: the log was started with another key")
            return line
        except (InvalidSignature, ValueError, KeyError, TypeError):
            self.problems.append(f"line {number + 1}: is not what the server signed")
            return {}

    def check_end(self, noted: str = "") -> None:
        """No line is missing at the end; the line that somebody noted earlier (LINES:HASH) is still there."""
        try:
            head = json.loads((self.folder / "audit.head").read_bytes())
            count, last = head["lines"], head["sha256"]
            self.key.verify(bytes.fromhex(head["sig"]), f"{count} {head['size']} {last}".encode())
        except (OSError, ValueError, KeyError, TypeError, InvalidSignature):
            self.problems.append("audit.head: is missing, or not what the server signed: lines may be missing")
        else:
            self._check_mark(count, last, "the last line was")
        if noted:
            self._check_mark(int(noted.partition(":")[0]), noted.partition(":")[2], "the line that was noted is")
        if self.torn:
            self.notes.append("the last line is incomplete: it is being written, or a crash cut it off")

    def _check_mark(self, count: int, mark: str, what: str) -> None:
        if count > len(self.whole) or (count and line_hash(self.whole[count - 1]) != mark):
            self.problems.append(f"the log has {len(self.whole)} lines; {what} line {count}, and is not there")

    def follow_runs(self) -> None:
        """Rounds come in order; a continued run continues from the model in the log."""
        submitted: dict[str, str] = {}
        for number, line in enumerate(self.lines, 1):
            event, name = line["event"], line.get("run", "")
            run = self.runs.get(name)
            if event in ("started", "resumed"):
                run = Run(line) if run is None or run.end else run
                after, lost = line["after"], sum(at > line["after"] for at in run.rounds)
                run.rounds = {at: said for at, said in run.rounds.items() if at <= after}
                if line["model_sha256"] != run.rounds.get(after, run.start)["model_sha256"]:
                    self.problems.append(f"line {number}: {name} does not continue from the model of round {after}")
                if lost:
                    self.notes.append(f"{name}: {count(lost)} after round {after} had to be repeated")
                if line["deployed"] and submitted.pop(name, "") != line["experiment_sha256"]:
                    self.notes.append(f"line {number}: {name} was not submitted by thistle deploy submit or resume")
                run.start, self.runs[name] = line, run
            elif event == "round" and (run is None or line["round"] != len(run.rounds) + 1):
                self.problems.append(f"line {number}: there is no round before round {line['round']} of {name}")
            elif run is not None and event == "round":
                run.rounds[line["round"]] = line
            elif run is not None and event == "finished":
                run.end = line
            elif event == "submitted":
                submitted[name] = line["experiment_sha256"]
            elif event == "mended":
                self.notes.append(
                    f"line {number}: a crash had left {line['bytes']} bytes of a line, which were cut off"
                )

    def folder_of(self, name: str) -> Path | None:
        """The run's own folder: beside the log, or where the log says."""
        places = (self.folder, self.folder / "runs" / name, Path(self.runs[name].start["folder"]))
        return next((place for place in places if (place / "experiment.toml").is_file()), None)


def file_problems(run: Run, folder: Path) -> Iterator[str]:
    """What in a run's folder is not as the log says."""
    if _flat(tomllib.loads((folder / "experiment.toml").read_text("utf-8"))) != run.start["experiment"]:
        yield "experiment.toml: is not the experiment that was started"
    metrics, verdicts = _by_round(folder / "metrics.jsonl"), _by_round(folder / "verdicts.jsonl")
    for number, line in run.rounds.items():
        if (number in metrics or run.end) and [_hash_of(one) for one in metrics.get(number, ())] != [
            line["metrics_sha256"]
        ]:
            yield f"metrics.jsonl: round {number} was changed"
        if (number in verdicts or run.end) and verdicts.get(number, []) != [
            {"round": number, **one} for one in line["verdicts"]
        ]:
            yield f"verdicts.jsonl: round {number} was changed"
        for client, _, digest, _ in line["replies"] if line["kept"] else ():
            if digest and _file_hash(folder / "replies" / f"{digest}.reply") != digest:
                yield f"replies: client {client}'s of round {number} is missing or changed"
    if run.end and _file_hash(folder / "model.safetensors") != run.end["file_sha256"]:
        yield "model.safetensors: is not the run's final model"
    if run.end and _hash_of(json.loads((folder / "summary.json").read_bytes())) != run.end["summary_sha256"]:
        yield "summary.json: was changed"


def count(rounds: int) -> str:
    return f"{rounds} round{'s' * (rounds != 1)}"


def line_hash(raw: bytes) -> str:
    return hashlib.sha256(raw + b"\n").hexdigest()


def _hash_of(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _by_round(path: Path) -> dict[int, list[Line]]:
    found: dict[int, list[Line]] = {}
    for raw in path.read_text("utf-8").splitlines():
        line = json.loads(raw)
        found.setdefault(line["round"], []).append(line)
    return found


def _flat(tree: Line, prefix: str = "") -> Line:
    keys: Line = {}
    for name, value in tree.items():
        keys |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return keys
