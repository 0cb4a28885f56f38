"""What Flower starts as `flwr-clientapp` on a warm node: it gets its process from the node's fork server.

Executed from its source by an isolated Python without site-packages, because it must be there in an instant. It lives
as long as the ClientApp does: ending it ends the ClientApp, and it ends as the ClientApp did. Where there is no fork
server, or this one does not answer, it becomes the ordinary program, which imports everything again.
"""

import array
import marshal
import os
import signal
import socket
import sys
from collections.abc import Callable

VARIABLE = "THISTLE_WARM"
"""In a node's environment: the fork server's socket."""
GREETING = b"warm"
PATIENCE = 5.0
"""Seconds that a fork server has for its greeting: it may hang. Nothing has been asked of it until then."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
LIMIT = 2**20
"""Bytes of one packet, at most."""


def reach(path: str, act: Callable[[str], object]) -> None:
    """Do it with a name of the socket that is short enough for the kernel, which takes 107 bytes."""
    folder = os.open(os.path.dirname(path), os.O_PATH)
    try:
        act(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def greeted(path: str) -> socket.socket | None:
    """A connection to the fork server; None: there is none that answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE)
    try:
        reach(path, connection.connect)
        if connection.recv(LIMIT) != GREETING:
            return None
    except OSError:  # time-outs included
        return None
    connection.settimeout(None)
    return connection


def launch(path: str) -> int | None:
    """The ClientApp's exit code; None: it was not started."""
    connection = greeted(path)
    if connection is None:
        return None
    umask = os.umask(0o77)
    os.umask(umask)
    order = marshal.dumps((sys.argv, dict(os.environ), os.getcwd(), umask))
    files = array.array("i", [0, 1, 2]).tobytes()
    try:
        connection.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        process = int.from_bytes(connection.recv(LIMIT), "little")
    except OSError:
        return None
    if not process:
        return None
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(process, number))
    try:
        end = connection.recv(LIMIT)
    except OSError:
        end = b""
    if not end:
        sys.stderr.write("the fork server was ended, and this ClientApp with it\n")
        return 1
    code = os.waitstatus_to_exitcode(int.from_bytes(end, "little"))
    return code if code >= 0 else 128 - code  # as a shell says it


def main() -> None:
    """Warm if possible."""
    path = os.environ.get(VARIABLE)
    code = launch(path) if path else None
    if code is not None:
        os._exit(code)
    folder, program = os.path.split(os.path.abspath(sys.argv[0]))
    ordinary = os.path.join(folder, "cold", program)
    os.execv(ordinary, [ordinary, *sys.argv[1:]])


if __name__ == "__main__":
    main()
