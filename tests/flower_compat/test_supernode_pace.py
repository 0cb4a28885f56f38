"""A SuperNode that looks more often: Flower's loop sleeps where we think, and its superexec is answered at once."""

from __future__ import annotations

import inspect
import re
import threading
import time
from types import SimpleNamespace

import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode import start_client_internal
from flwr.supernode.servicer.runtime import runtime_handlers

from tests.flower_node import RuntimeAPI, bundle
from thistle.flower_compat import supernode_pace
from thistle.flower_compat.supernode_pace import IDLE, OFTEN, SOON, WAITING, Clock, hurry


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_handlers, "acquire_task", runtime_handlers.acquire_task)
    monkeypatch.setattr(start_client_internal, "time", start_client_internal.time)
    hurry()


def test_flowers_loop_only_sleeps_and_only_so_long() -> None:
    code = inspect.getsource(start_client_internal)
    assert sorted(re.findall(r"\btime\.(\w+\([\d.]*\))", code)) == [f"sleep({WAITING:g})"] * 2 + [f"sleep({IDLE:g})"]
    assert "sleep(0.5)" in inspect.getsource(start_client_internal._push_messages)
    assert "sleep(3)" in inspect.getsource(start_client_internal.start_client_internal)


def test_the_longer_nothing_has_come_the_less_often_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [1000.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(supernode_pace, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    clock = Clock()
    clock.sleep(IDLE)
    now[0] += 5.0
    clock.sleep(IDLE)
    now[0] += 3600.0
    clock.sleep(IDLE)
    clock.sleep(WAITING)  # a message is under way
    clock.sleep(IDLE)
    assert slept == pytest.approx([SOON, 0.52, IDLE, OFTEN, SOON])


@pytest.mark.usefixtures("hurried")
def test_a_superexec_that_asks_is_answered_when_there_is_work_or_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernode_pace, "PATIENCE", 120.0)
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with (
        RuntimeAPI() as node,
        RuntimeHttpClient.from_server_address(f"127.0.0.1:{node.port}", True, None, []) as client,
    ):
        came = threading.Timer(0.5, node.receive, [bundle({"app.py": ""})])
        came.start()
        answer = client.AcquireTask(request)
        assert answer.token and answer.task.type == TaskType.CLIENT_APP
        monkeypatch.setattr(supernode_pace, "PATIENCE", 0.1)
        began = time.monotonic()
        assert not client.AcquireTask(request).token and time.monotonic() - began >= 0.1
