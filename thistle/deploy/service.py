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
from dataclasses import dataclass, field
from pathlib import Path

from exchange.text import last_line

LEASH = Path(__file__).with_name("leash.py")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0
"""Seconds before a process is started again: doubled with each death, forgotten after a long life."""
LONG_LIFE = 60.0
START = 120.0
"""Seconds that a process has until it answers for the first time."""
PROBE_EVERY = 5.0
DEAF = 3
"""So many probes without an answer, and a process that once answered is taken for dead."""
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
    process: subprocess.Popen | None = None
    ready: bool = False
    """Whether it has answered since it was started."""
    on_hold: bool = False
    """Not to run for the time being."""
    longest_pause: float = LONGEST_PAUSE
    explain: Callable[[str], str] = str
    """What its last words mean."""
    deaths: int = 0
    _started: float = 0.0
    _probed: float = 0.0
    _silent: int = 0
    _not_before: float = field(default=0.0)

    @property
    def shown(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.command)

    def look(self) -> list[str]:
        """See to it that it runs; returns what there is to say about it."""
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
            return [self._died(f"ended with {code}")]
        return self._listen(now)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *self.command],
                env=dict(self.environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.ready, self._silent = self.probe is None, 0
        self._started = self._probed = time.monotonic()

    def _listen(self, now: float) -> list[str]:
        """Probe it: often until it answers, then now and then."""
        if self.probe is None or now - self._probed < (PROBE_EVERY if self.ready else 0.2):
            return []
        answers = self.probe()
        self._probed = time.monotonic()
        if answers:
            said = [] if self.ready else [f"{self.name} is up"]
            self.ready, self._silent = True, 0
            return said
        self._silent += 1
        too_quiet = self._silent >= DEAF if self.ready else now - self._started > START
        if not too_quiet:
            return []
        self.end(0.0)
        return [self._died("did not answer, and was ended")]

    def _died(self, how: str) -> str:
        lived = time.monotonic() - self._started
        self.deaths = 1 if lived > LONG_LIFE else self.deaths + 1
        pause = min(FIRST_PAUSE * 2 ** min(self.deaths - 1, 10), self.longest_pause)
        self._not_before = time.monotonic() + pause
        self.end(0.0)
        return f"{self.name} {how} ({self.explain(self.last_words())}); starts again in {pause:.0f} s"

    def last_words(self) -> str:
        """The last line of its log that says something."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                return last_line(file.read().decode("utf-8", "replace"), 160)
        except OSError:
            return "no log"

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
