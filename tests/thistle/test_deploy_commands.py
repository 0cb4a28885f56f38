"""`thistle deploy` before anything starts: what is wrong is said in one line, exit code 2."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.federations import run, tiny
from tests.thistle.test_cli import thistle
from thistle.commands.certs.make import make as certs
from thistle.commands.deploy.local import TRIAL, fitting, share
from thistle.commands.deploy.members import add_node
from thistle.commands.deploy.submit import for_server, show
from thistle.deploy import doctor
from thistle.deploy.follow import Follower, shown
from thistle.deploy.gateway import gateway
from thistle.deploy.health import accepts
from thistle.deploy.members import Members, fingerprint
from thistle.deploy.nodeconfig import as_text, node_config
from thistle.deploy.programs import ServerFiles, superlink
from thistle.deploy.state import State
from thistle.deploy.versions import versions
from thistle.engines.flower_programs import EngineError, Flwr, free_port, tool, write_connection
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.experiments.settings import Value
from thistle.flower_compat import fleet
from thistle.running.prepare import make_experiment
from thistle.strategies.build import resolve
from thistle.terminal.addresses import parse_address
from thistle.terminal.progress import RunProgress


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "pki"
    certs(folder, ["fl.example.org"], ["one", "two"])
    return folder


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["server", "--certs", "nowhere"], "has no ca.crt"),
        (["node", "--server", "x", "--certs", "nowhere"], "has no ca.crt"),
        (["submit", "digits-clean"], "no server runs"),
        (["submit", "nonsense"], "neither a preset"),
        (["status"], "no server runs"),
        (["status", "--state", "nowhere"], "no server runs there"),
        (["add-node", "nowhere.pub", "--clients", "0-9"], "no such file"),
        (["revoke", "one"], "no server runs"),
        (["local", "2", "--malicious", "3", "--attack", "zero"], "there are 2 nodes"),
        (["local", "2", "--malicious", "1"], "give both"),
        (["local", "2", "--malicious", "1", "--attack", "sgn-flip"], "did you mean sign-flip"),
        (["local", "4", "--clients", "3"], "too few"),
        (["clean", "--state", "nowhere"], "not the state"),
        (["doctor", "--certs", "nowhere", "--server", "x"], "--server x: should be HOST:PORT"),
        (["doctor", "--certs", "nowhere", "--server", "x:70000"], "--server x:70000: should be HOST:PORT"),
    ],
)
def test_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.setenv("THISTLE_STATE", str(tmp_path / "state"))
    done = thistle("deploy", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:0", "host:65536", "host:x", "host:８０", "a b:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match=f"--server {text}: should be HOST:PORT"):
        parse_address("--server", text)


@pytest.mark.parametrize("text", ["::1:80", "[::1:80", "a;b:1", "a{b:1", "a/b:1", "a\nb:1", "a$b:1", "'a:1"])
def test_what_would_end_a_line_of_nginx_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="should be HOST:PORT"):
        parse_address("--listen", text)


def test_addresses() -> None:
    assert parse_address("--server", "fl.example.org:8443") == ("fl.example.org", 8443)
    assert parse_address("--listen", "[::]:443") == ("::", 443)
    assert parse_address("--listen", "*:443") == ("*", 443)


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_the_doctor_knows_whether_a_port_is_free(host: str, family: socket.AddressFamily) -> None:
    try:
        taken = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    name = f"[{host}]" if ":" in host else host
    listen = f"{name}:{taken.getsockname()[1]}"
    with taken:
        assert not doctor.check_free(listen).well
    assert doctor.check_free(listen).well


def test_a_nodes_config_as_flower_reads_it(tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    (tmp_path / "own data").mkdir()
    said = node_config("0-4,7", f"folder:{tmp_path}/own data", "malicious", "sign-flip", ["attack-strength=3.0"])
    assert parse_config_args([as_text(said)]) == said
    assert said["attack-strength"] == 3.0 and said["role"] == "malicious"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("0-x", "", "honest", "", []), "not a client id"),
        (("", "digits", "honest", "", []), "folder:PATH, npz:PATH, csv:PATH"),
        (("", "folder:/does/not/exist", "honest", "", []), "does not exist"),
        (("", "", "evil", "", []), "honest, calibrated or malicious"),
        (("", "", "malicious", "", []), "no such attack"),
        (("", "", "honest", "zero", []), "only with --role malicious"),
        (("", "", "honest", "", ["epsilon=0.1"]), "an honest node has no settings"),
        (("", "", "malicious", "zero", ["epsilon=0.1"]), "attack-strength"),
        (("", "", "malicious", "sign-flip", ["attack-strength=much"]), "attack-strength"),
        (("", "", "malicious", "mimic", []), "not possible on a real node"),
    ],
)
def test_a_node_that_would_be_refused_later_is_refused_now(
    arguments: tuple[str, str, str, str, list[str]], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        node_config(*arguments)


def test_quotes_do_not_reach_flower() -> None:
    config: dict[str, Value] = {"data": 'folder:/a"b'}
    with pytest.raises(UserError, match="quotes"):
        as_text(config)


def test_clients_are_divided_among_nodes() -> None:
    assert [share(50, 4, number) for number in range(4)] == ["0-11", "12-24", "25-36", "37-49"]
    assert share(0, 4, 1) == ""


@pytest.mark.parametrize("clients", [0, 1, 3, 9, 10, 49, 50, 200])
def test_the_line_that_a_local_federation_offers_is_an_experiment_for_it(clients: int) -> None:
    words = fitting(clients)
    experiment = make_experiment(TRIAL, words[1::2])
    assert set(words[::2]) == {"--set"} and experiment.rounds == 10
    assert experiment.task.clients == (clients or 50) and experiment.client.per_round == min(10, clients or 50)
    resolve(experiment)


def test_flowers_commands_are_shown_as_one_can_type_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the home that has the address in it, and with the program's path where a shell would not find it."""
    home = tmp_path / "with space"
    home.mkdir()
    monkeypatch.setenv("PATH", "/nowhere")
    line = shown(Flwr({"FLWR_HOME": str(home)}), "--version")
    said = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "Flower version" in said.stdout
    monkeypatch.setenv("PATH", str(Path(tool("flwr")).parent))
    assert shown(Flwr({"FLWR_HOME": "/srv"}), "stop", "7", "local") == "FLWR_HOME=/srv flwr stop 7 local"


def test_bindings_are_kept_apart_and_found_by_name_id_and_key(tmp_path: Path, pki: Path) -> None:
    members = Members(State(tmp_path))
    key = pki / "server" / "nodes" / "one.pub"
    members.bind("17", "0-9", False, "one", fingerprint(key))
    members.bind("23", "10-19", True, "two", "other")
    assert members.find("one") == members.find("17") == members.find(str(key)) == "17"
    with pytest.raises(UserError, match="one, two"):
        members.find("three")
    with pytest.raises(UserError, match="9 is one's already"):
        members.check("9-10", but="23")
    members.check("8-9", but="17")
    members.drop("17")
    assert json.loads((tmp_path / "bindings.json").read_text())["23"]["own-data"] is True
    with pytest.raises(UserError, match="not a node's public key"):
        fingerprint(pki / "ca.crt")


def test_two_administrators_do_not_give_away_the_same_clients(tmp_path: Path, pki: Path) -> None:
    state, members = State(tmp_path / "state"), Members(State(tmp_path / "state"))
    state.create()
    state.tell({"ca": "ca.crt"})
    refused: list[str] = []

    def admit() -> None:
        try:
            add_node(pki / "server" / "nodes" / "two.pub", "5-14", state=str(state.path))
        except UserError as error:
            refused.append(str(error))

    with state.held():
        other = Thread(target=admit)
        with members.alone():
            other.start()
            other.join(1.0)  # it must wait, and not look at bindings that are about to change
            members.bind("17", "0-9", False, "one", "its key")
        other.join()
    assert refused == ["--clients 5-14: 5 is one's already"]


def test_the_server_asks_for_tls_keys_and_a_secret(tmp_path: Path, pki: Path) -> None:
    state = State(tmp_path / "state")
    state.create()
    server = pki / "server"
    files = ServerFiles(server / "ca.crt", server / "server.pem", server / "server.key")
    command = superlink(state, 8000, files).command
    for flag in ("--enable-supernode-auth", "--ssl-keyfile", "--database", "--disable-runtime-dependency-installation"):
        assert flag in command
    assert (
        command[command.index("--host") + 1] == "127.0.0.1" and command[command.index("--isolation") + 1] == "process"
    )
    assert "--insecure" not in command
    assert state.secret().stat().st_mode & 0o777 == 0o600 and state.secret().read_text() == state.secret().read_text()


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_the_gateways_configuration_lets_only_nodes_through(tmp_path: Path, pki: Path) -> None:
    import subprocess

    state = State(tmp_path / "state")
    state.create()
    server = pki / "server"
    files = ServerFiles(server / "ca.crt", server / "server.pem", server / "server.key")
    service = gateway(state, 8000, files, "127.0.0.1:18443", superlink(state, 8000, files))
    subprocess.run([*service.command, "-t"], check=True, capture_output=True)
    text = (state.path / "gateway" / "nginx.conf").read_text()
    assert f"^{fleet.PREFIX}({'|'.join(fleet.ROUTES)})$" in text


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_a_flood_of_requests_leaves_few_lines_behind(tmp_path: Path, pki: Path) -> None:
    state, server, port = State(tmp_path / "state"), pki / "server", free_port()
    state.create()
    files = ServerFiles(server / "ca.crt", server / "server.pem", server / "server.key")
    link = superlink(state, free_port(), files)
    service = gateway(state, free_port(), files, f"127.0.0.1:{port}", link)
    service.start()
    try:
        deadline = time.monotonic() + 240
        while not accepts(f"127.0.0.1:{port}"):
            assert time.monotonic() < deadline, service.said()
            time.sleep(0.05)
        for path, usual in (("/thistle", b"200"), (f"/{'x' * 2000}", b"404"), ("/v1/fleet/get-run", b"502")):
            assert flood(port, files.ca, path) == {usual, b"503"}
            time.sleep(2.5)  # the burst is worked off at 200 per second
        assert post(port, files.ca, "/v1/fleet/register-node") == post(port, files.ca, "/v1/control/start-run") == 404
        assert json.loads(doctor.ask("127.0.0.1", port, files.ca)[1]) == versions()  # type: ignore[index]
    finally:
        service.ask_to_end()
        service.end(10.0)
    lines = state.access_log.read_text().splitlines()
    assert any('"GET /thistle HTTP/1.1" 200 ' in line for line in lines) and max(map(len, lines)) < 250
    assert not any('" 503 ' in line for line in lines) and "limiting requests" not in service.said()


def post(port: int, ca: Path, path: str) -> int:
    line = http.client.HTTPSConnection("localhost", port, context=ssl.create_default_context(cafile=ca), timeout=30)
    with closing(line):
        line.request("POST", path, body=b"x" * 1000)
        return line.getresponse().status


def flood(port: int, ca: Path, path: str) -> set[bytes]:
    """What is answered to many requests of one connection, until one of them is too many."""
    secure = partial(ssl.create_default_context(cafile=ca).wrap_socket, server_hostname="localhost")
    codes: set[bytes] = set()
    with socket.create_connection(("127.0.0.1", port)) as plain, secure(plain) as line:
        line.settimeout(30)
        for _ in range(18):
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 50)
            answer = b""
            while answer.count(b"HTTP/1.1 ") < 50 or not answer.endswith((b"}", b"</html>\r\n")):
                answer += line.recv(65536)
            codes |= set(re.findall(rb"HTTP/1.1 (\d+)", answer))
    return codes


def test_the_doctor_finds_what_is_wrong(pki: Path, tmp_path: Path) -> None:
    certificate = doctor.check_certificate(pki / "server")
    assert certificate.well and "fl.example.org" in certificate.text
    own = tmp_path / "one"
    shutil.copytree(pki / "one", own)
    assert doctor.check_files(own, ("ca.crt", "node.key"), "node.key").well
    (own / "node.key").chmod(0o644)
    assert "chmod 600" in doctor.check_files(own, ("ca.crt", "node.key"), "node.key").text
    assert not doctor.check_port("127.0.0.1", 9).well
    late, soon = (time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + shift)) for shift in (3, -20))
    assert doctor.check_clock(late).well and "NTP" in doctor.check_clock(soon).text
    assert doctor.check_versions(json.dumps(versions()).encode()).well
    assert "install the same" in doctor.check_versions(json.dumps({**versions(), "torch": "1"}).encode()).text
    assert not doctor.check_versions(b"<html>").well


def test_a_deployed_run_is_not_compared_by_who_attacked(tmp_path: Path) -> None:
    from thistle.results.figures import Finished

    folder = run(tiny(tmp_path))
    folder.truth.write_text(json.dumps({"malicious": None, "kind": None, "start": None, "stop": None}))
    with pytest.raises(UserError, match="deployed"):
        Finished.read(RunFolder(folder.path))


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may offer one again that was just let go, and that somebody is about to listen on."""
    offers = iter([("127.0.0.1", 4001), ("127.0.0.1", 4001), ("127.0.0.1", 4002)])
    monkeypatch.setattr(socket.socket, "getsockname", lambda self: next(offers))
    assert [free_port(), free_port()] == [4001, 4002]


def test_a_superlink_that_does_not_answer_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    state.create()
    write_connection(state.home, f"127.0.0.1:{free_port()}")
    with state.held():
        done = thistle("deploy", "submit", "digits-clean", "--quiet", "--state", str(state.path), cwd=tmp_path)
    assert done.returncode == 1 and "Flower refused the run" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ([], "client.clip = 1.5: updates longer than 1.5 times the usual length are clipped to that"),
        (["client.clip=2"], "client.clip = 2: updates longer than 2 times the usual length are clipped to that"),
        (["client.clip=off"], "client.clip = off: one accepted reply can ruin the model of fedavg"),
        (["strategy.name=rofsl"], ""),
    ],
)
def test_submit_settles_what_auto_means_and_says_so(tmp_path: Path, said: list[str], line: str) -> None:
    state = State(tmp_path / "state")
    state.create()
    write_connection(state.home, f"127.0.0.1:{free_port()}")
    overrides = [f"--set={pair}" for pair in said]
    with state.held():
        done = thistle("deploy", "submit", "digits-clean", *overrides, "--state", str(state.path), cwd=tmp_path)
    assert done.returncode == 1, done.stderr  # nobody answers
    assert [text for text in done.stderr.splitlines() if "client.clip" in text] == ([line] if line else [])


def test_a_run_whose_end_was_not_heard_has_finished_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror, experiment = RunFolder(tmp_path), tiny(tmp_path / "runs", "good")
    follower = Follower(Flwr({}), "1", mirror, RunProgress(mirror, 4, quiet=True))
    show(mirror, follower, experiment)
    assert f"its folder, on the server, is {tmp_path}/runs/good" in capsys.readouterr().err
    follower.folder = "/elsewhere/good"
    show(mirror, follower, experiment)
    assert "is /elsewhere/good" in capsys.readouterr().err
    follower._take({"event": "finished", "summary": read_json(run(experiment).summary)})
    show(mirror, follower, experiment)
    assert "run folder: /elsewhere/good" in capsys.readouterr().out


def test_a_servers_runs_are_where_out_says_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = State(tmp_path / "state")
    usual, elsewhere = make_experiment("digits-clean", []), make_experiment("digits-clean", ["run.out=other"])
    assert for_server(usual, server, True, "", 0).run.out == str(server.runs)
    assert for_server(usual, server, True, "mine", 0).run.out == str(tmp_path / "mine")
    assert for_server(elsewhere, server, True, "mine", 0).run.out == str(tmp_path / "mine")
    with pytest.raises(UserError, match="--out"):
        for_server(elsewhere, server, True, "", 0)
    again = for_server(usual, server, True, "", 2)
    assert for_server(again, server, True, "", 2) == again


def test_a_run_that_was_stopped_is_called_so_whoever_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = RunFolder(tmp_path)
    follower = Follower(Flwr({}), "1", mirror, RunProgress(mirror, 4, quiet=True))
    with pytest.raises(EngineError, match="stopped from outside"):
        follower._take({"event": "stopped", "message": "stopped from outside"})
    monkeypatch.setattr(Flwr, "status", lambda *_: ("finished:stopped", ""))
    with pytest.raises(EngineError, match="the run was stopped"):
        follower._stream_ended(None)  # type: ignore[arg-type]
