"""What client.workers replaces in Flower is still there, and still looks as it did."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool

from client import workers


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What repair() changes is changed for one test only."""
    monkeypatch.setattr(raybackend, "RayBackend", raybackend.RayBackend)
    for name in ("ThreadPoolExecutor", "add_messages_to_queue"):
        monkeypatch.setattr(vce_api, name, getattr(vce_api, name))


def test_flower_calls_what_is_replaced() -> None:
    source = inspect.getsource(vce_api.run_api)
    assert "ThreadPoolExecutor()" in source and "target=add_messages_to_queue" in source
    assert "from .backend.raybackend import RayBackend" in inspect.getsource(vce_api.start_vce)
    backend = inspect.getsource(raybackend.RayBackend)
    for call in ("self.init_ray(", "self.pool.submit(", "self.pool.fetch_result_and_return_actor_to_pool(future)"):
        assert call in backend
    assert "self.pool.add_actor_back_to_pool(future)" in backend
    assert list(inspect.signature(vce_api.add_messages_to_queue).parameters) == list(
        inspect.signature(workers._hand_out).parameters
    )
    assert list(inspect.signature(BasicActorPool.__init__).parameters)[1:] == [
        "actor_type",
        "client_resources",
        "actor_kwargs",
    ]


def test_repairing_twice_is_repairing_once() -> None:
    workers.repair()
    backend: Any = raybackend.RayBackend
    assert backend.__module__ == "client.workers"
    workers.repair()
    assert raybackend.RayBackend is backend
