"""The probe of the containers' health checks, asked as they ask it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from thistle.engines.flower_programs import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serving() -> Iterator[str]:
    """Where a health service says SERVING."""
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def probe(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thistle.deploy.probe", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_well_only_if_something_is_there_and_all_of_it_answers(tmp_path: Path, serving: str) -> None:
    assert probe(tmp_path).returncode == 1
    about = tmp_path / "server" / "server.json"
    about.parent.mkdir()
    gateway = {"listen": f"0.0.0.0:{serving.rpartition(':')[2]}"}
    about.write_text(json.dumps({**gateway, "services": {"superlink": serving, "gateway": ""}}))
    well = probe(tmp_path)
    assert well.returncode == 0 and well.stdout == "superlink: up\ngateway: up\n"
    about.write_text(json.dumps({"services": {"superlink": serving, "superexec": f"127.0.0.1:{free_port()}"}}))
    ill = probe(tmp_path)
    assert ill.returncode == 1 and "superexec: no answer" in ill.stdout
