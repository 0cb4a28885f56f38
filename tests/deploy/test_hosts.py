"""Three hosts with TLS and node keys: the same model as in simulation, and what a node's host is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.federations import Running, hosts, model_sha, stopped_at_the_end, thistle, write_experiment

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1500)]

ASK = """
import http.client, ssl, sys
address, port, ca, path = sys.argv[1:]
try:
    trust = ssl.create_default_context(cafile=ca)
    connection = http.client.HTTPSConnection(address, int(port), timeout=20, context=trust)
    connection.request("POST", path, body=b"", headers={"Content-Type": "application/protobuf"})
    print(connection.getresponse().status)
except OSError as error:
    print(type(error).__name__)
"""


def ask(host: str, address: str, port: int, ca: Path, path: str) -> str:
    """What a host gets when it asks the server for this."""
    inside = ["ip", "netns", "exec", host, sys.executable, "-c", ASK, address, f"{port}", str(ca), path]
    return subprocess.run(inside, capture_output=True, text=True, check=True).stdout.strip()


def test_three_hosts(tmp_path: Path) -> None:
    if not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        pytest.skip("nginx is not installed")
    experiment = write_experiment(tmp_path / "digits.toml", rounds=10)
    pki = tmp_path / "pki"
    with hosts("a", "b", "c") as addresses, stopped_at_the_end([]) as running:
        (a, address), (b, _), (c, _) = addresses.items()
        states = {name: tmp_path / f"state-{name[-1]}" for name in addresses}
        names = ("--node", "one", "--node", "two", "--node", "three", "--node", "unknown")
        assert thistle("certs", "pki", "--host", address, *names, state=states[a]).returncode == 0

        serving = ("deploy", "server", "--certs", str(pki / "server"), "--listen", f"{address}:8443")
        server = Running(*serving, state=states[a], log=tmp_path / "server.log", host=a)
        running.append(server)
        server.wait_for("nodes connect to")
        for name, clients in (("one", "0-1"), ("two", "2-3"), ("three", "4-5")):
            key = str(pki / "server" / "nodes" / f"{name}.pub")
            added = thistle("deploy", "add-node", key, "--clients", clients, state=states[a], host=a)
            assert added.returncode == 0, added.stderr
        taken = thistle("deploy", "add-node", key, "--clients", "3-5", state=states[a], host=a)
        assert taken.returncode == 2 and "two's already" in taken.stderr

        bad = ("--role", "malicious", "--attack", "sign-flip", "--set", "attack-strength=3.0")
        for name, host, more in (("one", b, ()), ("two", b, ()), ("three", c, bad), ("unknown", c, ())):
            joining = ("deploy", "node", "--server", f"{address}:8443", "--certs", str(pki / name), *more)
            node = Running(*joining, state=states[host], log=tmp_path / f"{name}.log", host=host)
            running.append(node)
            node.wait_for("its key is not registered" if name == "unknown" else f"the node {name} is up")

        submit = ("deploy", "submit", str(experiment), "--nodes", "3", "--name")
        done = thistle(*submit, "secure", state=states[a], host=a)
        assert done.returncode == 0, done.stderr
        attack = ("--set=attack.kind=sign-flip", "--set=attack.strength=3.0", "--set=attack.clients=4-5")
        simulated = thistle("run", str(experiment), "--name", "ray", "--out", "here", *attack, state=states[a])
        assert simulated.returncode == 0, simulated.stderr
        assert model_sha(states[a] / "server" / "runs" / "secure") == model_sha(tmp_path / "here" / "ray")

        for route in ("control/start-run", "control/register-node", "runtime/acquire-task", "fleet/register-node"):
            assert ask(b, address, 8443, pki / "one" / "ca.crt", f"/v1/{route}") == "404"
        assert ask(b, address, 8443, pki / "one" / "ca.crt", "/docs") == "404"
        assert ask(b, address, 8443, pki / "one" / "ca.crt", "/v1/fleet/pull-messages") == "401"
        assert ask(b, address, 8000, pki / "one" / "ca.crt", "/docs") == ConnectionRefusedError.__name__

        victim = running[1]
        victim.part("flower-supernode").send_signal(signal.SIGKILL)  # and started again at once: refused for a while
        victim.wait_for("its last session is not yet over")
        victim.wait_for("one is up", times=3)
        revoked = thistle("deploy", "revoke", "three", state=states[a], host=a)
        assert revoked.returncode == 0, revoked.stderr
        running[3].wait_for("three ended with")
        nodes = json.loads((states[a] / "server" / "bindings.json").read_text())
        assert sorted(said["name"] for said in nodes.values()) == ["one", "two"]


def test_the_gateways_certificate_is_checked(tmp_path: Path) -> None:
    """A node of another CA does not talk to this server."""
    assert thistle("certs", "right", "--host", "127.0.0.1", "--node", "n", state=tmp_path / "s").returncode == 0
    assert thistle("certs", "wrong", "--host", "127.0.0.1", "--node", "n", state=tmp_path / "s").returncode == 0
    serving = ("deploy", "server", "--certs", str(tmp_path / "right" / "server"), "--port", "18000", "--no-gateway")
    with stopped_at_the_end([]) as running:
        running.append(Running(*serving, state=tmp_path / "s", log=tmp_path / "server.log"))
        running[0].wait_for("nodes connect to")
        joining = ("deploy", "node", "--server", "127.0.0.1:18000", "--certs", str(tmp_path / "wrong" / "n"))
        running.append(Running(*joining, state=tmp_path / "s", log=tmp_path / "node.log"))
        running[1].wait_for("not of this CA")
