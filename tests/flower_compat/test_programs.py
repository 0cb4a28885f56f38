"""The commands that we start are read by the installed Flower's own command lines."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import flwr
import pytest
import ray
import typer
from flwr.cli.app import app as flwr_app
from flwr.supercore.cli.flower_superexec import _parse_args as superexec_parser
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink_parser
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode_parser

from benchmarks.superlink import command as simulating
from thistle.deploy import members
from thistle.deploy.programs import PATIENT, PROMPT, ServerFiles, fork_servers, server_superexec, superlink, supernode
from thistle.deploy.state import State
from thistle.engines import flower_programs
from thistle.engines.flower_programs import Flwr, flower_environment
from thistle.flower_compat.ray_environment import PRIVATE_RAY
from thistle.flower_compat.warm import WARM

PARSERS = {
    "flower-superlink": superlink_parser,
    "flower-supernode": supernode_parser,
    "flower-superexec": superexec_parser,
}


def read(command: list[str]) -> argparse.Namespace:
    """The command as its program reads it; one that it does not understand ends the test."""
    words = command[len(PATIENT) :] if tuple(command[: len(PATIENT)]) in (PATIENT, PROMPT) else command
    return PARSERS[Path(words[0]).name]().parse_args(words[1:])


@pytest.fixture
def state(tmp_path: Path) -> State:
    made = State(tmp_path / "state")
    made.create()
    return made


@pytest.mark.parametrize("secure", [True, False])
def test_a_deployed_federation(state: State, tmp_path: Path, secure: bool) -> None:
    files = ServerFiles(tmp_path / "ca.crt", tmp_path / "server.pem", tmp_path / "server.key") if secure else None
    link = superlink(state, 8000, files)
    read_link = read(link.command)
    assert (read_link.port, read_link.database, read_link.isolation) == (8000, str(state.database), "process")
    assert read_link.enable_supernode_auth is secure is not read_link.insecure
    assert read_link.health_server_address == link.health
    executor = read(server_superexec(state, 8000, files, link).command)
    assert executor.runtime_api_address == "127.0.0.1:8000" and executor.insecure is not secure
    ca, key = (tmp_path / "ca.crt", tmp_path / "node.key") if secure else (None, None)
    node, beside = supernode("one", state, "server:443", 'role="honest"', ca, key)
    read_node = read(node.command)
    assert read_node.superlink == "server:443" and read_node.node_config == 'role="honest"'
    assert read_node.auth_supernode_private_key == (str(key) if secure else None)
    assert read(beside.command).runtime_api_address == f"127.0.0.1:{read_node.port}"


def test_only_a_warm_node_is_told_of_a_fork_server(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    (forks,) = fork_servers("one-warm", state, False, said.append)
    _, beside = supernode("one", state, "server:443", 'role="honest"', forks=[forks])
    assert beside.environment[WARM] == forks.command[-1] and not forks.needed
    assert fork_servers("one-warm", state, True, said.append) == [] == said
    assert WARM not in supernode("one", state, "server:443", 'role="honest"')[1].environment
    monkeypatch.setattr("sys.platform", "darwin")
    assert fork_servers("one-warm", state, False, said.append) == [] and "warm clients need Linux" in said[0]


def test_a_private_superlink() -> None:
    link = read(simulating(4711))
    assert link.simulation and link.insecure and (link.host, link.port) == ("127.0.0.1", 4711)


class Answer:
    """In place of starting `flwr`: its own command line reads the words, then gives an answer."""

    def __init__(self) -> None:
        self.read: list[tuple[str, dict[str, Any]]] = []

    def run(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        group: Any = typer.main.get_command(flwr_app)
        words = command[1:]
        while hasattr(group, "commands"):
            group, words = group.commands[words[0]], words[1:]
        context = group.make_context(group.name, list(words))
        self.read.append((group.name, context.params))
        runs = '[{"status": "running"}]'
        return subprocess.CompletedProcess(
            command, 0, f'{{"run-id": 5, "node-id": 6, "success": true, "nodes": [], "runs": {runs}}}', ""
        )


def test_flwrs_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer, flwr_command = Answer(), Flwr({})
    monkeypatch.setattr(flower_programs.subprocess, "run", answer.run)
    key = tmp_path / "node.pub"
    key.touch()
    assert flwr_command.run(tmp_path, tmp_path / "c.toml", "--federation-config", "num-supernodes=2") == "5"
    assert flwr_command.status("5") == ("running", "")
    assert members.register(flwr_command, key, "one") == "6"
    members.unregister(flwr_command, "6")
    assert members.listed(flwr_command) == []
    assert [name for name, _ in answer.read] == ["run", "ls", "register", "unregister", "list"]
    run, status, register = (parameters for _, parameters in answer.read[:3])
    assert run["superlink"] == "thistle" and list(run["federation_config_overrides"]) == ["num-supernodes=2"]
    assert list(run["run_config_overrides"]) == [str(tmp_path / "c.toml")]
    assert str(status["run_id"]) == "5" and register["name"] == "one"


def test_variables_that_flower_reads(tmp_path: Path) -> None:
    names = [name for name in flower_environment(tmp_path) if name.startswith("FLWR_")]
    assert len(names) >= 5
    texts = [path.read_text(encoding="utf-8") for path in Path(flwr.__file__).parent.rglob("*.py")]
    for name in names:
        assert any(f'"{name}"' in text for text in texts), name


def test_variables_that_ray_reads() -> None:
    folder = Path(ray.__file__).parent
    scripts = (folder / "_private" / "ray_constants.py").read_bytes()
    compiled = (folder / "_raylet.so").read_bytes()
    for name in PRIVATE_RAY.keys() - {"RAY_ADDRESS"}:
        assert name.encode() in scripts or name.removeprefix("RAY_").encode() in compiled, name


@pytest.mark.parametrize(
    ("around", "program"), [(PATIENT, "flower-superlink"), (PATIENT, "flower-superexec"), (PROMPT, "flower-supernode")]
)
def test_a_program_that_is_changed_is_still_the_program(around: tuple[str, ...], program: str) -> None:
    command = [*around, program, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(f"usage: {program}")


def test_a_command_that_flower_does_not_know_would_be_noticed() -> None:
    with pytest.raises(SystemExit):
        read([*PATIENT, "flower-superlink", "--isolated"])
