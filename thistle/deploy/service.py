"""One process that is kept alive: started, probed, ended, started again."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from thistle.protocol.text import last_line

DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")
PAUSES = (1.0, 2.0, 4.0, *[5.0] * 12, 30.0)
"""Seconds before a process is started again, death by death: often for the minute in which a SuperLink refuses a
node that was killed, then less so. Forgotten after a long life."""
LONG_LIFE = 60.0
START = 120.0
"""Seconds that a process has until it answers for the first time."""
PROBE_EVERY = 5.0
DEAF = 3
"""After this many probes without an answer, a process that once answered counts as dead."""
GRACE = 10.0
"""Seconds that a process has to end by itself."""


@dataclass
class Service:
    """A command that should always run."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    folder: Path
    """Where it runs."""
    probe: Callable[[], bool] | None = None
    health: str = ""
    """Where its gRPC health service listens."""
    after: Service | None = None
    """Started only when this one answers."""
    needed: bool = True
    """Whether the others are of no use without it."""
    process: subprocess.Popen | None = None
    ready: bool = False
    """Whether it has answered since it was started."""
    on_hold: bool = False
    """Not to run for the time being."""
    sign: str = ""
    """What its log says once it has started its work: with that and an answer to the probe, it is up."""
    explain: Callable[[str], str] = last_line
    """What a log means that ended badly."""
    deaths: int = 0
    starts: int = 0
    """Since the supervisor was started."""
    _started: float = 0.0
    _probed: float = 0.0
    _silent: int = 0
    _not_before: float = 0.0
    _log_from: int = 0
    _reason: str = ""

    @property
    def shown(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.command)

    def look(self) -> list[str]:
        """Make sure that it runs; returns what there is to say about it."""
        now = time.monotonic()
        if self.on_hold:
            self.end(0.0)
            return []
        if self.process is None:
            if now >= self._not_before and (self.after is None or self.after.ready):
                self.start()
            return []
        code = self.process.poll()
        if code is not None:
            return self._died(f"ended with {code}")
        return self._listen(now)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(DIE_WITH_PARENT), str(os.getpid()), *self.command],
                env=dict(self.environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        self.ready, self._silent = self.probe is None, 0
        self._started = self._probed = time.monotonic()

    def _listen(self, now: float) -> list[str]:
        """Probe it: often until it answers, then now and then."""
        if self.probe is None or now - self._probed < (PROBE_EVERY if self.ready else 0.2):
            return []
        answers = self.probe() and (self.ready or self.sign in self.said())
        self._probed = time.monotonic()
        if answers:
            said = [] if self.ready else [f"{self.name} is up"]
            self.ready, self._silent, self._reason = True, 0, ""
            return said
        self._silent += 1
        too_quiet = self._silent >= DEAF if self.ready else now - self._started > START
        if not too_quiet:
            return []
        self.end(0.0)
        return self._died("did not answer and was stopped")

    def _died(self, how: str) -> list[str]:
        """It will be started again after a pause; the same reason is not told twice."""
        lived = time.monotonic() - self._started
        self.deaths = 1 if lived > LONG_LIFE else self.deaths + 1
        pause = PAUSES[min(self.deaths, len(PAUSES)) - 1]
        self._not_before = time.monotonic() + pause
        self.end(0.0)
        before, self._reason = self._reason, f"{self.name} {how} ({self.explain(self.said())})"
        return (
            [] if self._reason == before else [f"{self._reason}; restarts in {pause:.0f} s, and repeatedly if needed"]
        )

    def said(self) -> str:
        """Its log since it was started: the end of it, if that is long."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_from, self.log.stat().st_size - 20_000))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, grace: float) -> None:
        """It, and whatever it started, is gone afterwards."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process, self.ready = None, False
