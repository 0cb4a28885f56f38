"""The contenders of round.py: all live at once, but only one computes at a time.

Two kinds. Those with a gate of their own (the bare loop, pfl) wait at a pipe. Flower's runs (Thistle, the stock app)
know no gate, and get none: between their turns all their processes are stopped (SIGSTOP). The round that a stop
interrupted is not counted: in each turn, every contender computes one round that warms it up and one that counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import tomli_w

from benchmarks.aggregators import ONE_THREAD
from benchmarks.superlink import PrivateSuperLink
from thistle.engines.flower_programs import EngineError
from thistle.engines.keeper import marked
from thistle.experiments.runfolder import nest, read_lines

LOOK = 0.02
"""Seconds between two looks at a file."""
HOLD = 10.0
"""Seconds after which a stopped run is let breathe: Flower gives up a run whose process is silent for a minute."""
BREATH = 2.0
PATIENCE = 1800.0
"""Seconds within which a round must come."""
ASK = 30.0
"""Seconds without a new line after which Flower is asked how the run is; then twice as many: asking costs."""


@dataclass(frozen=True)
class Sample:
    """One counted round."""

    seconds: float
    cpu: Counter[str] = field(default_factory=Counter)
    """CPU seconds by what the processes are."""
    line: Mapping[str, Any] = field(default_factory=dict)
    """What the contender itself recorded of the round."""


class Contender(ABC):
    """Something that computes the round when it is its turn."""

    name: str

    @abstractmethod
    def start(self) -> None:
        """Returns when it has computed a round, and holds."""

    @abstractmethod
    def turn(self) -> Sample:
        """One round to warm up, one that counts; holds again afterwards."""

    @abstractmethod
    def processes(self) -> list[psutil.Process]:
        """All that belongs to it."""

    @abstractmethod
    def close(self) -> None:
        """Ends all of them."""

    def breathe(self) -> None:
        """Called now and then while others have their turns."""
        return

    def pss(self) -> int:
        """Bytes: the sum of its processes' shares of memory."""
        total = 0
        for process in self.processes():
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total


class Piped(Contender):
    """Processes that wait for a line on their standard input, compute a round and answer with a line."""

    def __init__(self, name: str, command: Sequence[str], ranks: Iterable[Mapping[str, str]] = ({},)) -> None:
        self.name, self.command, self.ranks = name, list(command), list(ranks)
        self.children: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        for rank in self.ranks:
            child = subprocess.Popen(
                self.command,
                env={**os.environ, **ONE_THREAD, "PYTHONWARNINGS": "ignore", **rank},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,  # Ctrl-C is ours to handle; not a session each: Linux shares out cores by session
            )
            self.children.append(child)
        self._wait()
        self._round()

    def _wait(self) -> None:
        for child in self.children:
            assert child.stdout is not None
            if not child.stdout.readline():
                raise EngineError(f"{self.name}: its process ended with code {child.wait()}")

    def _round(self) -> float:
        started = time.perf_counter()
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        self._wait()
        return time.perf_counter() - started

    def turn(self) -> Sample:
        self._round()
        before = cpu_seconds(self.processes())
        seconds = self._round()
        return Sample(seconds, cpu_seconds(self.processes()) - before)

    def processes(self) -> list[psutil.Process]:
        heads = [psutil.Process(child.pid) for child in self.children]
        return [process for head in heads for process in (head, *head.children(recursive=True))]

    def close(self) -> None:
        for child in self.children:
            with suppress(OSError):
                assert child.stdin is not None
                child.stdin.close()
        for child in self.children:
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


class Stamps(threading.Thread):
    """Watches a growing file: when each of its lines was written, by the file's own time."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.over = path, threading.Event()
        self.times: list[float | None] = []
        """None: not known, because another line came before we looked."""

    def run(self) -> None:
        while not self.over.wait(LOOK):
            if self.path.is_file():
                count, written = self.path.read_bytes().count(b"\n"), self.path.stat().st_mtime_ns / 1e9
                missed = count - len(self.times) - 1
                self.times += [*[None] * missed, written] if missed >= 0 else []


class Flowered(Contender):
    """A run of Flower's simulation that appends a line to a file after each round."""

    def __init__(
        self, name: str, lines: Path, submit: Callable[[PrivateSuperLink], str], meanwhile: Callable[[], None]
    ):
        self.name, self.lines, self.submit, self.meanwhile = name, lines, submit, meanwhile
        self.link: PrivateSuperLink | None = None
        self.held_since: float | None = None
        self.stamps = Stamps(lines)

    def start(self) -> None:
        self.begin()
        self.wait_for(2, self.meanwhile)
        self._hold()

    def begin(self) -> None:
        """Only submit the run, and let it go."""
        self.stamps.start()
        self.link = PrivateSuperLink().__enter__()
        self.link.wait_until_ready()
        self.run_id = self.submit(self.link)

    def turn(self) -> Sample:
        """The time of a round is that from line to line: with all that the run does between two rounds."""
        self._release()
        count, processes = len(self.stamps.times), self.processes()  # finding them takes a while: not in the round
        began = self.wait_for(count + 1)
        before = cpu_seconds(processes)
        ended = self.wait_for(count + 2)
        cpu = cpu_seconds(processes) - before
        self._hold()
        return Sample(ended - began, cpu, list(read_lines(self.lines))[count + 1])

    def breathe(self) -> None:
        """All but the workers, which would only take the time that the others need."""
        if self.held_since is not None and time.monotonic() - self.held_since > HOLD:
            self._signal(signal.SIGCONT, but="workers")
            time.sleep(BREATH)
            self._hold()

    def processes(self) -> list[psutil.Process]:
        return marked(self.link.session, set()) if self.link else []

    def close(self) -> None:
        self.stamps.over.set()
        if self.link:
            self._release()
            self.link.__exit__(None, None, None)
            self.link = None

    def _signal(self, number: int, but: str = "") -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                if not but or _kind(process) != but:
                    process.send_signal(number)

    def _hold(self) -> None:
        self._signal(signal.SIGSTOP)
        self.held_since = time.monotonic()

    def _release(self) -> None:
        self.held_since = None
        self._signal(signal.SIGCONT)

    def wait_for(self, count: int, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Wait for this many lines; return when the last of them was written."""
        began, patience = time.monotonic(), ASK
        while len(self.stamps.times) < count:
            if time.monotonic() - began > patience:
                patience *= 2
                self._check(time.monotonic() - began)
            meanwhile()
            time.sleep(LOOK)
        stamp = self.stamps.times[count - 1]
        if stamp is None:
            raise EngineError(f"{self.name}: two rounds ended between two looks at {self.lines.name}")
        return stamp

    def _check(self, waited: float) -> None:
        assert self.link is not None
        self.link.check_alive()
        status, details = self.link.status(self.run_id)
        if status.startswith("finished") or waited > PATIENCE:
            raise EngineError(f"{self.name}: no further round in {waited:.0f} s; Flower says {status}: {details}")


def cpu_seconds(processes: Iterable[psutil.Process]) -> Counter[str]:
    """CPU seconds so far, by what the processes are."""
    spent: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent[_kind(process)] += times.user + times.system  # type: ignore[assignment]
    return spent


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "ClientAppActor" in command:
        return "workers"
    return "server" if "flwr-simulation" in command else "other"


def submit_app(link: PrivateSuperLink, app: Path, config: Mapping[str, Any], supernodes: int) -> str:
    """Hand any Flower app to the link: one CPU a client, so that two run at a time on two cores."""
    file = link.home / f"run-{uuid4().hex}.toml"
    file.write_text(tomli_w.dumps(nest(config)), encoding="utf-8")
    federation = (
        f"num-supernodes={supernodes} client-resources-num-cpus=1 init-args-num-cpus=2 "
        "init-args-logging-level='ERROR' init-args-log-to-driver=false"
    )
    return link.run_app(app, file, federation)
