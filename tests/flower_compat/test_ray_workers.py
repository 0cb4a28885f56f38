"""What thistle.flower_compat.ray_workers replaces in Flower is still there, and still looks as it did."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import pytest
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool

from thistle.flower_compat import ray_workers as workers


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What repair() changes is changed for one test only."""
    monkeypatch.setattr(raybackend, "RayBackend", raybackend.RayBackend)
    for name in ("ThreadPoolExecutor", "add_messages_to_queue", "put_message_into_state"):
        monkeypatch.setattr(vce_api, name, getattr(vce_api, name))


def as_installed(name: str) -> Any:
    """A module of Flower's as it is on disk, whatever was replaced in the one that is loaded."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flower_calls_what_is_replaced() -> None:
    engine = as_installed(workers.ENGINE)
    source = inspect.getsource(engine.run_api)
    assert "ThreadPoolExecutor()" in source and "target=add_messages_to_queue" in source
    assert "target=put_message_into_state" in source
    assert "from .backend.raybackend import RayBackend" in inspect.getsource(engine.start_vce)
    backend = inspect.getsource(as_installed(workers.BACKEND).RayBackend)
    for call in ("self.init_ray(", "self.pool.submit(", "self.pool.fetch_result_and_return_actor_to_pool(future)"):
        assert call in backend
    assert "self.pool.add_actor_back_to_pool(future)" in backend
    for theirs, ours in (
        (engine.add_messages_to_queue, workers._hand_out),
        (engine.put_message_into_state, workers._bring_in),
    ):
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    assert "state.store_message_res(message_reply)" in inspect.getsource(engine.put_message_into_state)
    assert list(inspect.signature(BasicActorPool.__init__).parameters)[1:] == [
        "actor_type",
        "client_resources",
        "actor_kwargs",
    ]


def test_repairing_twice_is_repairing_once() -> None:
    workers.repair()
    backend: Any = raybackend.RayBackend
    assert backend.__module__ == "thistle.flower_compat.ray_workers"
    workers.repair()
    assert raybackend.RayBackend is backend
