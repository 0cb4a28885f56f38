"""Who does not belong, or does not behave: refused and visible, and the run of the others is what it would have been.

What was seen is a table in docs/deploy.md; what it proves, docs/security.md.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from tests.deploy.federations import thistle
from tests.deploy.odd.hostile import BUFFERS, FIRST, KINDS
from tests.deploy.secure import ATTACK, Secure, guest
from tests.hostile import HOSTILE
from thistle.engines.flower_programs import flower_environment, free_port, tool, write_connection
from thistle.experiments.runfolder import read_lines

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
DEADLINE = 60.0
SESSION = 180.0
"""Seconds for which Flower's own grid would wait for an upload that never comes."""


@pytest.mark.smoke
def test_who_does_not_belong_is_refused_and_the_run_is_unaffected(federation: Secure, tmp_path: Path) -> None:
    federation.join("unknown", federation.c).wait_for("its key is not registered")
    federation.admit("late", "100-101")
    federation.join("late", federation.c, odd="ahead").wait_for("its clock is more than 5 s ahead")
    other = thistle("certs", "other", "--host", "10.77.0.1", "--node", "n", state=tmp_path / "s")
    assert other.returncode == 0, other.stderr
    joining = ("deploy", "node", "--server", federation.gateway, "--certs", str(tmp_path / "other" / "n"))
    wrong = federation.start(*joining, log="other", host=federation.c)
    wrong.wait_for("not of this CA")
    ca = str(federation.pki / "one" / "ca.crt")
    assert "404 Not Found" in stranger(federation, tmp_path, "--root-certificates", ca)
    assert "400 Bad Request" in stranger(federation, tmp_path, "--insecure")

    run = federation.submit("undisturbed")
    assert run.result() == 0, run.said()
    assert federation.sha("undisturbed") == federation.simulated("undisturbed", set(), **ATTACK)
    log = (federation.state / "gateway" / "access.log").read_text()
    assert '"POST /v1/fleet/activate-node HTTP/1.1" 401' in log
    for one in (wrong, federation.nodes.pop("unknown"), federation.nodes.pop("late")):
        one.stop()
    assert federation.command("deploy", "revoke", "late").returncode == 0


def stranger(federation: Secure, folder: Path, *how: str) -> str:
    """What a SuperNode says that has no key, until it gives up."""
    where = ["--superlink", federation.gateway, "--port", f"{free_port()}", "--isolation", "process", *how]
    home = folder / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        ["ip", "netns", "exec", federation.c, tool("flower-supernode"), *where],
        env=flower_environment(home),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout + done.stderr


@pytest.mark.smoke
def test_a_nodes_host_cannot_give_orders(federation: Secure, tmp_path: Path) -> None:
    """It has the CA's certificate and a key; Flower's own tools get nothing with them."""
    write_connection(tmp_path, federation.gateway, federation.pki / "one" / "ca.crt")
    app, key = tmp_path / "app", federation.pki / "server" / "nodes" / "unknown.pub"
    app.mkdir()
    (app / "evil.py").write_text("app = None\n")
    components = {"serverapp": "evil:app", "clientapp": "evil:app"}
    project = {"name": "evil", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []}
    flower = {"flwr": {"app": {"publisher": "x", "components": components}}}
    (app / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": flower}))
    for order in (["run", str(app), "thistle"], ["supernode", "register", str(key), "thistle"], ["ls", "thistle"]):
        done = subprocess.run(
            ["ip", "netns", "exec", federation.b, tool("flwr"), *order],
            env=flower_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode != 0, done.stdout
        assert "404" in done.stdout + done.stderr
    for route in ("control/start-run", "control/register-node", "runtime/acquire-task", "fleet/register-node"):
        assert ask(federation, 8443, f"/v1/{route}") == "404"
    assert [ask(federation, 8443, path) for path in ("/docs", "/openapi.json", "/health")] == ["404"] * 3
    assert ask(federation, 8443, "/v1/fleet/../control/start-run") == "404"
    assert ask(federation, 8443, "/v1/fleet/pull-messages") == "401"
    assert ask(federation, 8000, "/docs") == ConnectionRefusedError.__name__


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


def ask(federation: Secure, port: int, path: str) -> str:
    """What a node's host gets when it asks the server for this."""
    words = [federation.addresses[federation.a], f"{port}", str(federation.pki / "one" / "ca.crt"), path]
    inside = ["ip", "netns", "exec", federation.b, sys.executable, "-c", ASK, *words]
    return subprocess.run(inside, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("odd", "kinds", "model"), [("hostile", KINDS, "mlp"), ("hostile_buffers", BUFFERS, "vgg8")])
def test_hostile_replies_from_a_real_node(federation: Secure, odd: str, kinds: list[str], model: str) -> None:
    """Every one of them is refused with its reason, and the others' model is as if the node had never been."""
    clients = FIRST + len(kinds)
    settings = {"rounds": 1, "task.clients": clients, "client.per-round": clients, "model.name": model}
    with guest(federation, odd, f"{FIRST}-{clients - 1}", "--cold", odd=odd):
        run = federation.submit(odd, 4, **settings)
        assert run.result() == 0, run.said()
    verdicts = {line["client"]: line for line in read_lines(federation.run_folder(odd).verdicts)}
    for client, kind in enumerate(kinds, FIRST):
        verdict = verdicts[client]
        if kind == "no records":  # nothing at all, as far as its host's reply goes
            assert verdict["verdict"] == "failed"
        else:
            assert (verdict["verdict"], verdict["reason"].split(":")[0]) == ("rejected", HOSTILE[kind][1]), kind
    assert federation.check_nothing_is_corrupted(odd) == {(1, client) for client in range(FIRST, clients)}


def test_a_node_that_announces_its_reply_and_never_uploads_it(federation: Secure) -> None:
    """It loses its own reply; the round ends at its time-out, and the others' replies are there."""
    with guest(federation, "stingy", "6-7", odd="stingy"):
        settings = {"rounds": 1, "task.clients": 8, "client.per-round": 8, "client.timeout": DEADLINE}
        run = federation.submit("stingy", 4, **settings)
        assert run.result() == 0, run.said()
    verdicts = {line["client"]: line for line in read_lines(federation.run_folder("stingy").verdicts)}
    assert [verdicts[client]["reason"] for client in (6, 7)] == ["timeout"] * 2
    assert federation.check_nothing_is_corrupted("stingy") == {(1, 6), (1, 7)}
    (round_,) = read_lines(federation.run_folder("stingy").metrics)
    assert DEADLINE <= round_["seconds_clients"] < SESSION
