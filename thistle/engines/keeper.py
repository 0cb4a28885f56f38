"""Keeps a process of Flower's or Ray's and cleans up after it, whatever becomes of the command that asked for it.

A process of its own: it starts the other, then waits until its standard input closes (the command
ended, or was killed) or the other dies. Then every process that carries this session's mark in its
environment, or shares a Unix session with one that does, is ended, and the session's folder is removed.
(Flower's and Ray's processes detach from their parents, but inherit the variable; some of Ray's overwrite
their environment with a title, but stay in the Unix session.)
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys

import psutil

MARK = "THISTLE_SESSION"
LOG = "log.txt"
"""In the session's folder: what the process says."""
MOST = 256
"""Files that may be open when this process starts."""
TAIL = 4096
"""Bytes of it that are passed on if the process has ended by itself."""
GRACE = 1.0
"""Seconds that processes get to end by themselves."""


def marked(session: str, unix_sessions: set[int]) -> list[psutil.Process]:
    """Every process that belongs to the session; the Unix sessions they live in are added to the set."""
    everybody = [(process, _unix_session(process.pid)) for process in psutil.process_iter()]
    ours = os.getsid(0)
    unix_sessions |= {unix for process, unix in everybody if unix != ours and _carries(process, session)}
    return [process for process, unix in everybody if unix in unix_sessions]


def _carries(process: psutil.Process, session: str) -> bool:
    try:
        return process.environ().get(MARK) == session
    except (psutil.Error, OSError):
        return False


def _unix_session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def sweep(session: str) -> None:
    """End them all: first politely, then not. New ones may be born meanwhile, so look again."""
    unix_sessions: set[int] = set()
    for attempt in range(10):
        processes = marked(session, unix_sessions)
        if not processes:
            return
        for process in processes:
            try:
                process.send_signal(signal.SIGTERM if attempt == 0 else signal.SIGKILL)
            except psutil.Error:
                continue
        psutil.wait_procs(processes, timeout=GRACE if attempt == 0 else 1.0)


def pass_on(log: str) -> None:
    """The end of it, to whoever started us."""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - TAIL))
        os.write(sys.stderr.fileno(), file.read())


def keep(session: str, home: str, command: list[str]) -> int:
    """Run `command` until it dies or our standard input closes; then sweep. Returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment = {**os.environ, MARK: session}
    with open(os.path.join(home, LOG), "wb") as log:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=False,  # what was passed on to us is meant for it,
        )
    os.closerange(3, MOST)  # and nobody else: the other end sees when it is gone
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], 0.2)
            if readable and not os.read(sys.stdin.fileno(), 1024):
                break
        else:
            pass_on(os.path.join(home, LOG))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sweep(session)
        child.wait()
        shutil.rmtree(home, ignore_errors=True)
    return child.returncode


def main() -> None:
    """keeper SESSION HOME COMMAND..."""
    code = keep(sys.argv[1], sys.argv[2], sys.argv[3:])
    sys.exit(128 - code if code < 0 else code)  # as a shell says it


if __name__ == "__main__":
    main()
