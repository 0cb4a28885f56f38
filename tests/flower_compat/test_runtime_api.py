"""Flower's connection of a ServerApp, over real HTTP: what it is, and what it makes of a SuperLink's answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flwr.supercore.retry import http_retry
from flwr.superlink.grid import HttpGrid

from tests.federations import tiny
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.flower_compat.runtime_api import HTTP_GRID, RunNotRunningException, is_deployed, sit_out_errors


@contextmanager
def superlink(*answers: int) -> Iterator[tuple[HttpGrid, list[str]]]:
    """One that gives these answers, the last of them for ever; Flower's grid of it, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            body = b"" if status == 200 else json.dumps({"code": 0, "detail": "no"}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/protobuf" if status == 200 else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield HttpGrid(f"127.0.0.1:{server.server_port}", insecure=True, token="x"), asked
        server.shutdown()


def test_flowers_grid_is_known_for_what_it_is(tmp_path: Path) -> None:
    assert HttpGrid.__module__ == HTTP_GRID
    assert is_deployed(HttpGrid(token="x"))
    assert not is_deployed(InlineGrid(client_app, tiny(tmp_path), 1))


def test_an_overloaded_superlink_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_retry, "_RETRYABLE_STATUS_CODES", http_retry._RETRYABLE_STATUS_CODES)
    sit_out_errors()
    with superlink(500, 200) as (grid, asked):
        assert list(grid.get_node_ids()) == []
    assert asked == ["/v1/runtime/get-nodes"] * 2


def test_a_run_that_was_stopped_is_told_by_an_exception_that_except_exception_misses() -> None:
    with superlink(403) as (grid, _), pytest.raises(RunNotRunningException):
        grid.get_node_ids()
    assert not issubclass(RunNotRunningException, Exception)
