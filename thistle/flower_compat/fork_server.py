"""A node's fork server: a process that has imported Flower and torch, and forks a ClientApp's process for each message.

Flower starts a new Python for every message, and its imports take longer than a small client's training. A process
forked from this one has them already, and nothing else: this one never sees a message, an app or any data. No app is
imported here, `thistle` included: each process imports the app of its own message, from the bundle that the node got.

Linux only (`die with the parent`, sockets that carry files). Run by its path, with one thread.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import marshal
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from runpy import run_path
from typing import Any, NoReturn

FLOWER = ("flwr.supernode.cli.flwr_clientapp", "flwr.cli.install", "httpcore", "h11", "encodings.cp437")
"""What Flower's own program imports before it has an app, at its start or later."""
HEAVY = ("torch", "numpy.random", "PIL.ImageDraw", "PIL.ImageFont")
"""What apps import, where it is installed."""
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
THREE = array.array("i", [0, 0, 0])

launcher = run_path(str(Path(__file__).with_name("warm_launch.py")), run_name="warm_launch")
unpacking = run_path(str(Path(__file__).with_name("unpacking.py")), run_name="unpacking")


@dataclass
class Order:
    """A ClientApp's process that is wanted, as its launcher describes it."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    umask: int
    files: list[int]
    launcher: int
    """The launcher's process, whose limits apply."""


@dataclass
class ForkServer:
    """One process, one thread: launchers on one side, their ClientApps on the other."""

    listener: socket.socket
    children: dict[int, socket.socket] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(init=False)

    def serve(self) -> Order:
        """Forever; returns in each forked process, with the work that it should do."""
        kept = open_files() - {self.listener.fileno()}
        self.selector = selectors.DefaultSelector()
        wakes, wake = socket.socketpair()
        wakes.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(wakes, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self._greet()
                elif key.fileobj is wakes:
                    with suppress(BlockingIOError):
                        wakes.recv(4096)
                    self._bury()
                elif (order := self._hear(key.fileobj)) is not None:  # type: ignore[arg-type]
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in open_files() - kept - set(order.files):
                        with suppress(OSError):
                            os.close(other)
                    return order

    def _greet(self) -> None:
        try:
            connection, _ = self.listener.accept()
            self.selector.register(connection, selectors.EVENT_READ)
            connection.send(launcher["GREETING"])
        except OSError:  # too many files are open, or it has gone already
            time.sleep(0.1)

    def _hear(self, connection: socket.socket) -> Order | None:
        """An order, which is carried out: the order itself in the new process, None in this one."""
        if connection.fileno() < 0:  # its ClientApp has just been buried
            return None
        try:
            told, extra, _, _ = connection.recvmsg(launcher["LIMIT"], socket.CMSG_SPACE(len(THREE.tobytes())))
        except OSError:
            told, extra = b"", []
        if not told:  # the launcher has ended
            self._end(connection)
            return None
        files = [file for _, _, data in extra for file in array.array("i", data)]
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        words, environment, folder, umask = marshal.loads(told)
        order = Order(words, environment, folder, umask, files, struct.unpack("3i", peer)[0])
        mine = os.getpid()
        try:
            child = os.fork()
        except OSError as error:  # no memory, too many processes
            print(f"cannot fork: {error}", file=sys.stderr, flush=True)
            self._end(connection)
        else:
            if child == 0:
                die_with(mine)
                return order
            self.children[child] = connection
            with suppress(OSError):
                connection.send(child.to_bytes(4, "little"))
        for file in files:
            os.close(file)
        return None

    def _end(self, connection: socket.socket) -> None:
        """A process whose launcher is gone is killed, as if it were the launcher."""
        self.selector.unregister(connection)
        for child, other in self.children.items():
            if other is connection:
                os.kill(child, signal.SIGKILL)  # not yet buried: the number is still its own
                return
        connection.close()

    def _bury(self) -> None:
        """For each process that has ended, tell its launcher how."""
        while self.children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            connection = self.children.pop(child)
            with suppress(OSError):
                connection.send(status.to_bytes(4, "little"))
            with suppress(KeyError):
                self.selector.unregister(connection)
            connection.close()


def open_files() -> set[int]:
    """Of this process."""
    return {int(name) for name in os.listdir("/proc/self/fd")}


def die_with(parent: int) -> None:
    """However it ends: nobody else knows this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prepare() -> set[str]:
    """Import what every process will need; returns what Flower's own program would not have imported."""
    gc.disable()
    for name in FLOWER:
        importlib.import_module(name)
    flowers = set(sys.modules)
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    check()
    gc.collect()
    gc.freeze()  # so that no later collection writes to pages that are shared
    gc.enable()
    return set(sys.modules) - flowers


def check() -> None:
    """Whether this process can be forked: no app's own code is in it, and no thread but this one."""
    if "thistle" in sys.modules:
        sys.exit("an app's own code is loaded already: nothing can be forked from that")
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{threads - 1} threads were started by imports: nothing can be forked from that")


def listen(path: str) -> socket.socket:
    """On a socket for this user alone."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    launcher["reach"](path, listener.bind)
    os.umask(before)
    listener.listen(64)
    return listener


def put_on(order: Order) -> None:
    """Be, as far as anything can tell, the process that Flower has started."""
    for number, file in enumerate(order.files):
        os.dup2(file, number)
        os.close(file)
    for which in (getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")):
        with suppress(ValueError, OSError):
            resource.setrlimit(which, resource.prlimit(order.launcher, which))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, order.launcher))
    os.chdir(order.folder)
    os.umask(order.umask)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.argv = order.words
    sys.path.insert(0, os.path.dirname(os.path.abspath(order.words[0])))
    ctypes.CDLL(None).prctl(PR_SET_NAME, os.path.basename(order.words[0]).encode())
    importlib.invalidate_caches()
    start_random_numbers_anew()


def start_random_numbers_anew() -> None:
    """As every new process does. Python's own generator sees to it by itself."""
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def let_apps_replace(modules: set[str]) -> None:
    """What the app brings along under the name of one of these is what it gets, as in a process without them."""
    install: Any = importlib.import_module("flwr.cli.install")
    theirs = install.validate_and_install

    def ours(*arguments: Any, **named: Any) -> Path:
        app: Path = theirs(*arguments, **named)
        own = {path.stem for path in app.iterdir()}
        for name in [name for name in modules if name.partition(".")[0] in own]:
            sys.modules.pop(name, None)
        return app

    install.validate_and_install = ours


def run(order: Order, modules: set[str]) -> NoReturn:
    """Flower's program, until it ends; then this process does, without taking apart what it shares with others."""
    code: Any = 1
    try:
        put_on(order)
        let_apps_replace(modules)
        unpacking["become"](os.path.basename(order.words[0]))
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main(path: str) -> None:
    """Serve on this socket."""
    modules = prepare()
    order = ForkServer(listen(path)).serve()
    run(order, modules)


if __name__ == "__main__":
    main(sys.argv[1])
