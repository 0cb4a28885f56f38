"""What thistle.flower_compat.simulation and its workers take from Flower and Ray is still there."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from flwr.server.superlink.fleet.vce import vce_api
from flwr.simulation.ray_transport import ray_actor as flowers
from flwr.simulation.run_simulation import _run_simulation
from ray._private.node import Node

from thistle.flower_compat.ray_actor import ClientAppActor
from thistle.flower_compat.simulation import HELPERS, share, simulate


def test_flower_is_called_as_it_can_be() -> None:
    taken = inspect.signature(_run_simulation).parameters
    source = inspect.getsource(simulate)
    given = [line.split("=")[0].strip() for line in source.splitlines() if line.startswith("        ")]
    assert {"num_supernodes", "client_app", "server_app", "server_app_context", "run"} <= set(given)
    assert set(given) <= set(taken)
    source = inspect.getsource(vce_api.worker) + inspect.getsource(vce_api.start_vce)
    assert "backend.process_message(message, context)" in source and "RayBackend(backend_config)" in source


def parameters(cls: type, method: str) -> list[str]:
    """Without those that Ray adds."""
    return [name for name in inspect.signature(getattr(cls, method)).parameters if not name.startswith("_")]


def test_the_actor_answers_as_flowers_does() -> None:
    theirs = flowers.VirtualClientEngineActor
    for name in ("run", "terminate"):
        assert len(parameters(ClientAppActor, name)) == len(parameters(theirs, name))
    assert "return cid, out_message, context" in inspect.getsource(theirs.run)


def test_a_worker_imports_neither_flowers_server_nor_its_database() -> None:
    code = "import sys, thistle.client.app, thistle.flower_compat.ray_actor as a; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in modules
    assert not {"sqlalchemy", "fastapi", "flwr.simulation", "matplotlib", "scipy"} & set(modules)


def test_rays_node_still_starts_what_nobody_needs() -> None:
    source = inspect.getsource(Node.start_head_processes) + inspect.getsource(Node.start_ray_processes)
    assert all(f"self.{name}(" in source for name in HELPERS)


@pytest.mark.parametrize(("gpus", "workers", "each"), [(1, 1, 1.0), (2, 1, 1.0), (1, 3, 0.3333), (2, 3, 0.5)])
def test_no_worker_has_parts_of_two_gpus(gpus: float, workers: int, each: float) -> None:
    assert share(gpus, workers) == each
    assert workers <= gpus * int(1 / each)
    assert share(0.0, workers) == 0.0
