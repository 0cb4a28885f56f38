"""ClientApps that are forked, seen from Flower's side: the same as those that it starts, but for the time they take."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.app import ConfigRecord, RecordDict

from tests.flower_node import RuntimeAPI, bundle
from thistle.engines.flower_programs import flower_environment
from thistle.flower_compat.unpacking import WARM as PROGRAM
from thistle.flower_compat.warm import FORK_SERVER, WARM, is_warm

PATIENCE = 240.0
APP = """
import json, os, resource, signal, sys, time
import numpy
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
import helper

app = ClientApp()
seen, torch = 0, sys.modules.get("torch")  # a cold one has no need of it

@app.train()
def train(message, context):
    global seen
    seen += 1
    words = dict(message.content["config"])
    for name in words.get("touch", "").split():
        open(name, "w").write(str(os.getpid()))
    if words.get("hang"):
        time.sleep(600)
    if words.get("memory"):
        bytearray(words["memory"])
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    facts = {
        "pid": os.getpid(), "parent": os.getppid(), "seen": seen, "helper": helper.WORD, "comm": comm,
        "argv": os.path.basename(sys.argv[0]), "variable": os.environ.get("VARIABLE", ""), "cwd": os.getcwd(),
        "umask": os.umask(0o77), "limit": resource.getrlimit(resource.RLIMIT_AS)[0],
        "numpy": float(numpy.random.random()), "torch": float(torch.rand(())) if torch else 0.0,
        "files": sorted(int(n) for n in os.listdir("/proc/self/fd")), "thistle": "thistle" in sys.modules,
        "sockets": sum(os.readlink(f"/proc/self/fd/{n}").startswith("socket:")
                       for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")),
        "handler": int(signal.getsignal(signal.SIGCHLD)), "wakeup": signal.set_wakeup_fd(-1),
    }
    print("said to stdout")
    print("said to stderr", file=sys.stderr)
    return Message(RecordDict({"facts": ConfigRecord({"json": json.dumps(facts)})}), reply_to=message)
"""
PLAIN = bundle({"app.py": APP, "helper.py": "WORD = 'one'\n"})


class Warm:
    """A node's fork server, the programs of a Flower home, and a SuperNode's Runtime API."""

    def __init__(self, folder: Path, node: RuntimeAPI) -> None:
        self.node, self.folder = node, folder
        self.runs: dict[int, int] = {}
        self.home = folder / "a 'home' with spaces" / ("and a long name" * 8)
        self.home.mkdir(parents=True)
        self.socket = self.home / "warm.sock"
        self.environment = {**flower_environment(self.home), WARM: str(self.socket)}
        self.start()

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        command = [sys.executable, "-P", str(FORK_SERVER), str(self.socket)]
        self.server = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + PATIENCE
        while not is_warm(str(self.socket)):
            assert self.server.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def launch(self, app: bytes = PLAIN, more: dict[str, str] | None = None, **told: Any) -> subprocess.Popen[str]:
        """What Flower's superexec starts for a message."""
        content = RecordDict({"config": ConfigRecord(told)})
        run, words = self.node.deliver(app, content)
        launched = subprocess.Popen(
            [str(self.home / "bin" / PROGRAM), *words],
            env={**self.environment, **(more or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
        )
        self.runs[launched.pid] = run
        return launched

    def facts(self, launched: subprocess.Popen[str]) -> dict[str, Any]:
        """What the app has seen around itself; its process has ended then."""
        said = launched.communicate(timeout=PATIENCE)
        assert launched.returncode == 0, said
        told: dict[str, Any] = json.loads(str(self.node.reply(self.runs[launched.pid]).content["facts"]["json"]))
        return {**told, "stdout": said[0], "stderr": said[1]}

    def hanging(self) -> tuple[subprocess.Popen[str], int]:
        """A ClientApp at work that will not end, and its process."""
        sign = self.folder / "hangs"
        launched = self.launch(touch=str(sign), hang=True)
        deadline = time.monotonic() + PATIENCE
        while not (sign.is_file() and sign.read_text()):
            assert launched.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process = int(sign.read_text())
        sign.unlink()
        return launched, process

    def gone(self, process: int) -> bool:
        """Buried, too."""
        deadline = time.monotonic() + PATIENCE
        while psutil.pid_exists(process) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not psutil.pid_exists(process)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    if sys.platform != "linux":
        pytest.skip("forks on Linux only")
    with RuntimeAPI() as node:
        made = Warm(tmp_path_factory.mktemp("warm"), node)
        try:
            yield made
        finally:
            made.server.terminate()
            made.server.wait()


def test_each_message_has_a_process_of_its_own_that_looks_like_flowers(warm: Warm) -> None:
    lower = (10 * 2**30, resource.getrlimit(resource.RLIMIT_AS)[1])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, lower)  # what the launcher inherits counts, not what the fork server has
    umask = os.umask(0o27)
    try:
        launched = [warm.launch(more={"VARIABLE": word}) for word in ("a", "b")]
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_AS, before)
    first, second = sorted((warm.facts(one) for one in launched), key=lambda facts: str(facts["variable"]))
    assert first["pid"] != second["pid"] and first["parent"] == second["parent"] == warm.server.pid
    assert (first["variable"], second["variable"]) == ("a", "b")
    for facts in (first, second):
        assert (facts["seen"], facts["argv"], facts["comm"]) == (1, PROGRAM, PROGRAM)
        assert (facts["cwd"], facts["umask"], facts["limit"]) == (str(warm.home), 0o27, lower[0])
        assert "said to stdout" in facts["stdout"] and "said to stderr" in facts["stderr"]
        assert "Start `flwr-clientapp` process" in facts["stderr"]
        assert facts["sockets"] <= 2, "its own connections to the SuperNode, none of the fork server's"
        assert facts["wakeup"] == -1 and facts["handler"] == signal.SIG_DFL and not facts["thistle"]
    assert first["numpy"] != second["numpy"] and first["torch"] != second["torch"]
    assert warm.gone(first["pid"]) and psutil.Process(warm.server.pid).children() == []


def test_the_app_of_the_message_runs_whatever_was_imported_before(warm: Warm) -> None:
    """Two versions under one name; and a module of the app's that is called like one that is already imported."""
    other = bundle({"app.py": APP, "helper.py": "WORD = 'two'\n"})
    brings = "import mpmath\nWORD = mpmath.WORD\n"
    third = bundle({"app.py": APP, "helper.py": brings, "mpmath/__init__.py": "WORD = 'its own'\n"})
    words = [warm.facts(warm.launch(app))["helper"] for app in (PLAIN, other, third, PLAIN)]
    assert words == ["one", "two", "its own", "one"]


def test_whoever_is_killed_takes_only_its_other_half_along(warm: Warm) -> None:
    launched, process = warm.hanging()
    neighbour, other = warm.hanging()
    launched.send_signal(signal.SIGKILL)  # as somebody would who looks for flwr-clientapp
    assert warm.gone(process) and launched.wait(PATIENCE) == -signal.SIGKILL
    os.kill(other, signal.SIGKILL)  # as the kernel does where memory ends
    assert neighbour.wait(PATIENCE) == 128 + signal.SIGKILL and warm.gone(other)
    asked, third = warm.hanging()
    asked.send_signal(signal.SIGTERM)  # is passed on: Flower's program ends in its own way
    asked.wait(PATIENCE)
    assert warm.gone(third) and "Task stopped." in asked.communicate()[1]
    assert warm.facts(warm.launch())["parent"] == warm.server.pid


def test_a_limit_of_memory_ends_one_message_only(warm: Warm) -> None:
    limit, before = 4 * 2**30, resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        launched = warm.launch(memory=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert launched.wait(PATIENCE) != 0
    assert "MemoryError" in warm.node.reply(warm.runs[launched.pid]).error.reason
    assert warm.facts(warm.launch())["parent"] == warm.server.pid


def test_without_its_fork_server_a_node_starts_its_apps_cold(warm: Warm) -> None:
    launched, process = warm.hanging()
    os.kill(warm.server.pid, signal.SIGKILL)
    warm.server.wait()
    assert launched.wait(PATIENCE) == 1 and warm.gone(process), "nobody would know of it any more"
    assert "the fork server was ended" in launched.communicate()[1]
    cold = warm.launch()
    facts = warm.facts(cold)
    assert facts["pid"] == cold.pid and facts["parent"] == os.getpid() and facts["helper"] == "one"
    warm.start()
    assert warm.facts(warm.launch())["parent"] == warm.server.pid


def test_a_fork_server_that_hangs_is_not_waited_for(warm: Warm) -> None:
    os.kill(warm.server.pid, signal.SIGSTOP)
    try:
        cold = warm.launch()
        assert warm.facts(cold)["pid"] == cold.pid
    finally:
        os.kill(warm.server.pid, signal.SIGCONT)
    assert warm.facts(warm.launch())["parent"] == warm.server.pid  # and the one before was not run a second time
    assert psutil.Process(warm.server.pid).children() == []


def test_where_nothing_can_be_forked_apps_start_cold_and_the_fork_server_lives(tmp_path: Path) -> None:
    socket = tmp_path / "warm.sock"
    code = (
        "import os, sys; from runpy import run_path; server = run_path(sys.argv[1]);"
        "os.fork = lambda: (_ for _ in ()).throw(BlockingIOError('no more processes'));"
        "server['ForkServer'](server['listen'](sys.argv[2])).serve()"
    )
    environment = {**flower_environment(tmp_path), WARM: str(socket)}
    command = [sys.executable, "-c", code, str(FORK_SERVER), str(socket)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        deadline = time.monotonic() + PATIENCE
        while not is_warm(str(socket)):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        shown = subprocess.run([PROGRAM, "--help"], env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout.startswith(f"usage: {PROGRAM}") and is_warm(str(socket))
        server.terminate()
        assert "cannot fork: no more processes" in server.communicate()[1]


def test_where_an_app_is_loaded_already_nothing_is_forked() -> None:
    code = "import sys, thistle; from runpy import run_path; run_path(sys.argv[1])['check']()"
    done = subprocess.run([sys.executable, "-c", code, str(FORK_SERVER)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "an app's own code is loaded already" in done.stderr


def test_a_process_with_threads_is_not_forked() -> None:
    code = (
        "import sys, threading; from runpy import run_path; server = run_path(sys.argv[1]);"
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); server['check']()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(FORK_SERVER)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 threads" in done.stderr
