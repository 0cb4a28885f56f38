"""Three hosts with TLS, node keys and one malicious node: the same model as in simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deploy.federations import Running, model_sha, stopped_at_the_end, thistle, write_experiment
from tests.deploy.secure import ATTACK, Secure, secure

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]


def test_three_hosts(federation: Secure) -> None:
    """Ten rounds; in the simulation the experiment names the attackers, here it is node three's own config."""
    run = federation.submit("ten", rounds=10)
    assert run.result() == 0, run.said()
    assert not federation.lost("ten")
    experiment = write_experiment(federation.folder / "ray.toml", rounds=10, **ATTACK)
    simulated = federation.command("run", str(experiment), "--name", "ray", "--out", "here")
    assert simulated.returncode == 0, simulated.stderr
    assert federation.sha("ten") == model_sha(federation.folder / "here" / "ray")


def test_bound_clients_are_nobody_elses_and_a_revoked_node_is_out(tmp_path: Path) -> None:
    with secure(tmp_path) as federation:
        key = str(federation.pki / "server" / "nodes" / "three.pub")
        taken = federation.command("deploy", "add-node", key, "--clients", "3-5")
        assert taken.returncode == 2 and "two's already" in taken.stderr
        revoked = federation.command("deploy", "revoke", "three")
        assert revoked.returncode == 0, revoked.stderr
        federation.nodes["three"].wait_for("three ended with")
        nodes = json.loads((federation.state / "bindings.json").read_text())
        assert sorted(said["name"] for said in nodes.values()) == ["one", "two"]
        again = federation.command("deploy", "add-node", key, "--clients", "4-5")
        assert again.returncode == 2 and "a revoked key is never admitted again" in again.stderr


def test_a_server_without_a_gateway(tmp_path: Path) -> None:
    """For nodes of its own machine; a node of another CA does not talk to it."""
    assert thistle("certs", "right", "--host", "127.0.0.1", "--node", "n", state=tmp_path / "s").returncode == 0
    assert thistle("certs", "wrong", "--host", "127.0.0.1", "--node", "n", state=tmp_path / "s").returncode == 0
    serving = ("deploy", "server", "--certs", str(tmp_path / "right" / "server"), "--port", "18000", "--no-gateway")
    with stopped_at_the_end([]) as running:
        running.append(Running(*serving, state=tmp_path / "s", log=tmp_path / "server.log"))
        running[0].wait_for("nodes connect to")
        joining = ("deploy", "node", "--server", "127.0.0.1:18000", "--certs", str(tmp_path / "wrong" / "n"))
        running.append(Running(*joining, state=tmp_path / "s", log=tmp_path / "node.log"))
        running[1].wait_for("not of this CA")
