"""A submitted run, followed from wherever the SuperLink can be reached: its announcements become a folder here.

The real run folder is beside the ServerApp. What is heard of it is kept in a folder of the same form for as long as
the command lasts, so that the progress bar and the summary need not know the difference.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from thistle.engines.flower_programs import NAME, EngineError, Flwr, tool
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, write_json
from thistle.protocol.announce import heard
from thistle.protocol.text import last_line
from thistle.terminal.progress import RunProgress


class Ear:
    """Flower's log of a run, line by line, as it comes; opened again when the stream breaks."""

    def __init__(self, flwr: Flwr, run_id: str) -> None:
        self.flwr, self.run_id = flwr, run_id
        self.lines: queue.Queue[str | None] = queue.Queue()
        self._heard = 0
        self._open()

    def _open(self) -> None:
        self.process = subprocess.Popen(
            [tool("flwr"), "log", self.run_id, NAME, "--stream"],
            env={**self.flwr.environment, "COLUMNS": "10000"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen) -> None:
        assert process.stdout is not None
        events = 0
        for line in process.stdout:
            if heard(line) is not None:
                events += 1
                if events <= self._heard:  # a stream that is opened again starts from the beginning
                    continue
                self._heard = events
            self.lines.put(line)
        self.lines.put(None)

    def again(self) -> None:
        """After the stream has ended."""
        self.close()
        self._open()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Follower:
    """Writes what it hears into a folder, until the run is over."""

    def __init__(self, flwr: Flwr, run_id: str, mirror: RunFolder, progress: RunProgress) -> None:
        self.flwr, self.run_id, self.mirror, self.progress = flwr, run_id, mirror, progress
        self.folder = ""
        """Where the run folder is, as the ServerApp says."""
        self._last = ""

    def follow(self) -> None:
        """Returns when the run has finished; raises if it fails."""
        ear = Ear(self.flwr, self.run_id)
        try:
            while not self._is_over(ear):
                self.progress.update()
        finally:
            ear.close()

    def _is_over(self, ear: Ear) -> bool:
        try:
            line = ear.lines.get(timeout=0.2)
        except queue.Empty:
            return False
        if line is None:
            return self._stream_ended(ear)
        event = heard(line)
        if event is None:
            self._last = line if line.strip() else self._last
            return False
        return self._take(event)

    def _take(self, event: Mapping[str, Any]) -> bool:
        kind = event["event"]
        if kind == "started":
            self.folder = str(event["folder"])
        elif kind == "warning":
            with self.mirror.log.open("a", encoding="utf-8") as file:
                file.write(f"- - WARNING {event['text']}\n")
        elif kind == "round":
            with self.mirror.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event["line"]) + "\n")
        elif kind == "finished":
            write_json(self.mirror.summary, event["summary"])
            return True
        elif kind in ("failed", "stopped"):
            if event.get("user"):
                raise UserError(str(event["message"]))
            raise EngineError(str(event["message"]))
        return False

    def _stream_ended(self, ear: Ear) -> bool:
        """Flower's own status decides; a stream may also break while the run continues, or the SuperLink is down."""
        status, details = patient_status(self.flwr, self.run_id)
        if status == "finished:completed":
            return True
        if status == "finished:stopped":
            raise EngineError("the run was stopped")
        if status.startswith("finished"):
            raise EngineError(f"the run is {status}: {details or last_line(self._last)}")
        time.sleep(1.0)
        ear.again()
        return False


def patient_status(flwr: Flwr, run_id: str, patience: float = 120.0) -> tuple[str, str]:
    """Flower's word on a run; a SuperLink that does not answer is being started again by its supervisor."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return flwr.status(run_id)
        except EngineError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def wait_for_verdict(flwr: Flwr, run_id: str, patience: float = 60.0) -> str:
    """Flower's final status of a run that has said it is done: it needs a moment to notice."""
    deadline = time.monotonic() + patience
    while True:
        status, _ = patient_status(flwr, run_id)
        if status.startswith("finished") or time.monotonic() > deadline:
            return status
        time.sleep(0.5)


def shown(flwr: Flwr, *arguments: str) -> str:
    """A command of Flower's as one can type it in any folder, whether or not its programs are on the path."""
    program = "flwr" if shutil.which("flwr") == tool("flwr") else tool("flwr")
    home = shlex.quote(os.path.abspath(flwr.environment["FLWR_HOME"]))
    return f"FLWR_HOME={home} {shlex.join([program, *arguments])}"
