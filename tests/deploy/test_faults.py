"""Faults, one at a time, in a federation of three hosts. After each: who is missing, and that nothing is corrupted.

What was seen is a table in docs/deploy.md.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.deploy.federations import Running
from tests.deploy.secure import Secure, guest
from thistle.experiments.runfolder import read_lines

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
THREES = {4, 5}
"""The clients of node three."""


def in_mid_round(federation: Secure, name: str, **more: object) -> Running:
    """A run whose first round is over, and node three at work for the second."""
    run = federation.submit(name, **more)
    run.wait_for("round 1")
    federation.nodes["three"].part("flwr-clientapp")
    return run


def finish(run: Running) -> None:
    assert run.result() == 0, run.said()


def test_a_supernode_killed_in_mid_round_and_started_again_at_once(federation: Secure) -> None:
    """The others go on without it; it is refused until its old session is over, and then back."""
    three = federation.nodes["three"]
    ups = three.said().count("three is up")
    run = in_mid_round(federation, "supernode")
    three.part("flower-supernode").send_signal(signal.SIGKILL)
    finish(run)
    three.wait_for("its last session is not yet over")
    three.wait_for("three is up", times=ups + 1)
    lost = federation.check_nothing_is_corrupted("supernode")
    assert {client for _, client in lost} == THREES
    assert (2, 4) in lost


@pytest.mark.parametrize("seconds", [30, 100])
def test_the_network_is_gone(federation: Secure, seconds: int) -> None:
    """Half a minute is nothing. After a minute the round ends without the node; the next one waits for it, if told."""
    name = f"cable-{seconds}"
    run = in_mid_round(federation, name, **{"rounds": 3, "client.min-replies": 6})
    federation.cable(federation.c, "down")
    try:
        time.sleep(seconds)
    finally:
        federation.cable(federation.c, "up")
    finish(run)
    lost = federation.check_nothing_is_corrupted(name)
    assert lost == (set() if seconds < 60 else {(2, 4), (2, 5)})


def test_one_http_500_from_the_gateway(federation: Secure) -> None:
    """Flower's node gives up for ever without ending: its supervisor notices, and starts it again."""
    three = federation.nodes["three"]
    ups = three.said().count("three is up")
    run = federation.submit("http-500", **{"rounds": 3, "client.min-replies": 6})
    run.wait_for("round 1")
    gateway = federation.state / "gateway"
    configuration, log = gateway / "nginx.conf", gateway / "access.log"
    usual, asked = configuration.read_text(), f"{federation.addresses[federation.c]}/v1/fleet/pull-messages"
    fault = f'set $asked "$remote_addr$uri"; if ($asked = "{asked}") {{ return 500; }}'
    broken, before = usual.replace("error_page 500 =503 @again;", fault), log.read_text().count(" 500 ")
    assert broken != usual
    _reload(gateway, broken)
    while log.read_text().count(" 500 ") == before:
        time.sleep(0.1)
    _reload(gateway, usual)
    three.wait_for("three did not answer and was stopped")
    three.wait_for("three is up", times=ups + 1)
    finish(run)
    lost = federation.check_nothing_is_corrupted("http-500")
    assert {client for _, client in lost} <= THREES and (3, 4) not in lost


def _reload(gateway: Path, configuration: str) -> None:
    (gateway / "nginx.conf").write_text(configuration)
    os.kill(int((gateway / "nginx.pid").read_text()), signal.SIGHUP)


def test_a_clientapp_killed(federation: Secure) -> None:
    """Its clients are sent again: nothing is lost."""
    run = in_mid_round(federation, "clientapp")
    federation.nodes["three"].part("flwr-clientapp").send_signal(signal.SIGKILL)
    finish(run)
    assert not federation.check_nothing_is_corrupted("clientapp")


def test_the_process_forked_for_a_clientapp_killed(federation: Secure) -> None:
    """As the kernel does where memory ends: the same."""
    run = in_mid_round(federation, "forked")
    fork_server = federation.nodes["three"].part("fork_server.py")
    while not (forked := fork_server.children()):
        time.sleep(0.01)
    forked[0].send_signal(signal.SIGKILL)
    finish(run)
    assert fork_server.is_running()
    assert not federation.check_nothing_is_corrupted("forked")


def test_a_fork_server_killed(federation: Secure) -> None:
    """With the ClientApp that it has forked, whose clients are sent again; the node goes on, and is warm again."""
    three = federation.nodes["three"]
    run = in_mid_round(federation, "fork-server")
    fork_server = three.part("fork_server.py")
    fork_server.send_signal(signal.SIGKILL)
    three.wait_for("three-warm ended with -9")
    finish(run)
    assert three.part("fork_server.py").pid != fork_server.pid
    assert not federation.check_nothing_is_corrupted("fork-server")


def test_a_client_that_hangs_and_one_that_wants_more_memory_than_its_node_allows(federation: Secure) -> None:
    """Both in processes that were forked: each fails alone, with its reason, and the third client does not."""
    more = {"rounds": 1, "task.clients": 9, "client.per-round": 9, "client.limit": 10.0}
    with guest(federation, "spoilt", "6-8", odd="spoilt"):
        finish(federation.submit("spoilt", 4, **more))
    verdicts = {line["client"]: line for line in read_lines(federation.run_folder("spoilt").verdicts)}
    assert "cut off after 10 s" in verdicts[6]["reason"] and "MemoryError" in verdicts[7]["reason"]
    assert federation.check_nothing_is_corrupted("spoilt") == {(1, 6), (1, 7)}


@pytest.mark.parametrize("program", ["flwr-serverapp", "flower-superexec", "flower-superlink"])
def test_the_servers_processes_killed(federation: Secure, program: str) -> None:
    """The run fails, says so, and goes on after its last checkpoint: the model is that of a run without a fault.

    A SuperLink is back so soon that the run may not even fail.
    """
    run = in_mid_round(federation, program)
    federation.server.part(program).send_signal(signal.SIGKILL)
    if run.result() != 0 or program != "flower-superlink":
        assert run.result() == 1 and f"thistle deploy resume {program}" in run.said(), run.said()
        resumed = federation.command("deploy", "resume", program)
        assert resumed.returncode == 0, resumed.stderr
    assert not federation.check_nothing_is_corrupted(program)
