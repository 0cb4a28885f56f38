"""Commands in processes of their own without three seconds of imports each: forked from one that has them.

What a command does is its own, from `main()` to the interpreter's end: exit code, output, folder, environment, signals.
What it cannot show is how a fresh interpreter imports: `test_cli.in_a_new_interpreter` is for that.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def serve() -> None:
    """Fork for every job of stdin and print how it ended; returns in the child, which then is the command."""
    import thistle.cli
    import thistle.client.app
    import thistle.server.app  # noqa: F401

    gc.freeze()  # a collection in the child would copy every page
    while line := sys.stdin.readline():
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in the child"
        child = os.fork()
        if not child:
            return _become(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def _become(job: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.argv, sys.path[0] = [str(ROOT / "thistle" / "__main__.py"), *job["arguments"]], job["cwd"]
    for number, name in enumerate((os.devnull, job["stdout"], job["stderr"])):
        file = os.open(name, os.O_RDWR | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)


class Server:
    """The other end: one command at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        command = [sys.executable, __file__]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit code (minus the signal where one ended it), stdout and stderr."""
        assert self.process.stdin and self.process.stdout
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
            files = {"stdout": out.name, "stderr": errors.name}
            job = {"arguments": arguments, "cwd": str(cwd), "environment": dict(environment), **files}
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            child = int(self.process.stdout.readline())
            try:
                code = int(self.process.stdout.readline())
            except BaseException:  # a test's time limit: the command must not go on beside the next ones
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                self.process.stdout.readline()
                raise
            return code, out.read().decode(), errors.read().decode()


if __name__ == "__main__":
    serve()
    from thistle.cli import main

    main()
