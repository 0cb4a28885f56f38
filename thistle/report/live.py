"""The page live: run folders watched by one reader, shown to any number of browsers.

Only what was read from run folders is served, by ids that the reader gave out: no address becomes a path.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from thistle.experiments.errors import UserError
from thistle.protocol.text import printable
from thistle.report.clients import Truth, VerdictLog, client_map
from thistle.report.page import POLICY, bokeh_script, live_page, page_script
from thistle.report.reading import inside, is_abandoned, read_run, run_id
from thistle.report.sources import is_sweep, runs_below, titles
from thistle.report.sweeps import as_page, read_sweep

logger = logging.getLogger("thistle")

EVERY = 0.5
"""Seconds between two looks at the folders."""
WATCHED = ("metrics.jsonl", "status.json", "summary.json", "truth.json", "robustness.json", "experiment.toml")
LOCAL = ("127.0.0.1", "localhost", "::1")


class Watched:
    """One run, read again whenever one of its files has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.version, self.page = 0, ""
        self._seen: tuple = ()
        self._log, self._lock = VerdictLog(folder), Lock()

    def look(self, name: str) -> None:
        """Read what is new; a file that vanishes under our hands is read the next time."""
        with suppress(OSError):
            now = (name, *(_stamp(self.folder, one) for one in WATCHED), is_abandoned(self.folder))
            if now != self._seen:
                self.page = json.dumps(asdict(read_run(self.folder, name)), allow_nan=False)
                self.version, self._seen = self.version + 1, now

    def map(self) -> dict[str, Any]:
        """Its clients over rounds; the lines that were read before are kept."""
        with self._lock:
            self._log.update()
            return client_map(self._log, Truth.read(self.folder))


def _stamp(folder: Path, name: str) -> tuple | None:
    path = inside(folder, name)
    if path is None:
        return None
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


class Reader:
    """All runs and sweeps in some folders, as they come, grow and go."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.runs: dict[str, Watched] = {}
        self.sweeps, self.sweep_version = "[]", 0
        self._sweeps_seen: tuple = ()
        self._told = ""

    def look_again(self) -> None:
        """What goes wrong is told once; the page shows what was read before."""
        try:
            self.look()
            self._told = ""
        except Exception as error:
            if self._told != str(error):
                logger.warning("not read: %s: %s", type(error).__name__, printable(error, 400))
            self._told = str(error)

    def look(self) -> None:
        """One pass over everything."""
        folders = list(dict.fromkeys(folder for root in self.roots for folder in runs_below(root)))
        known = {run_id(folder): folder for folder in folders}
        self.runs = {key: self.runs.get(key) or Watched(folder) for key, folder in known.items()}
        for watched, name in zip(self.runs.values(), titles(folders), strict=True):
            watched.look(name)
        self._look_at_sweeps()

    def _look_at_sweeps(self) -> None:
        """A sweep is read again when a cell comes to an end."""
        folders = [root for root in self.roots if is_sweep(root)]
        ends = [(_stamp(run.folder, "summary.json"), _stamp(run.folder, "status.json")) for run in self.runs.values()]
        now = (tuple(_stamp(folder, "sweep.json") for folder in folders), tuple(ends)) if folders else ()
        if now == self._sweeps_seen:
            return
        self._sweeps_seen = now
        with suppress(UserError, OSError):
            self.sweeps = json.dumps([as_page(read_sweep(folder)) for folder in folders], allow_nan=False)
            self.sweep_version += 1


async def news(reader: Reader, request: Request) -> AsyncIterator[str]:
    """Server-sent events: which runs there are, then each run and sweep whenever it has changed.

    They end when the server does, or else it would wait for them.
    """
    order: list[str] | None = None
    sent: dict[str, int] = {}
    swept = 0
    while not request.app.state.server.should_exit and not await request.is_disconnected():
        runs = reader.runs
        if list(runs) != order:
            order = list(runs)
            yield f"event: runs\ndata: {json.dumps(order)}\n\n"
        changed = {key: run for key, run in runs.items() if run.version != sent.get(key, 0)}
        sweeps = reader.sweeps if reader.sweep_version != swept else "null"
        if changed or sweeps != "null":
            sent |= {key: run.version for key, run in changed.items()}
            swept = reader.sweep_version
            pages = ",".join(run.page for run in changed.values())
            yield f'event: changed\ndata: {{"runs":[{pages}],"sweeps":{sweeps}}}\n\n'
        await asyncio.sleep(EVERY)


class Headers:
    """Headers of every answer: the browser may run nothing else and ask only this server."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(
                    {
                        "Content-Security-Policy": POLICY.format(scripts="'self'", connect="'self'")
                        + "; frame-ancestors 'none'",
                        "X-Content-Type-Options": "nosniff",
                        "Referrer-Policy": "no-referrer",
                        "Cache-Control": "no-store",
                    }
                )
            await send(message)

        await self.app(scope, receive, send_with)


def make_server(roots: Sequence[Path], host: str) -> uvicorn.Server:
    """A server for sockets that listen already."""
    app = make_app(roots, host)
    config = uvicorn.Config(app, ws="none", log_level="warning", timeout_graceful_shutdown=5, server_header=False)
    server = uvicorn.Server(config)
    app.state.server = server
    return server


def make_app(roots: Sequence[Path], host: str) -> FastAPI:
    """Five addresses, all of them read only."""
    reader = Reader(roots)

    @asynccontextmanager
    async def watching(_: FastAPI) -> AsyncIterator[None]:
        async def keep_looking() -> None:
            while True:
                await asyncio.to_thread(reader.look_again)
                await asyncio.sleep(EVERY)

        await asyncio.to_thread(reader.look_again)
        task = asyncio.create_task(keep_looking())
        yield
        task.cancel()

    app = FastAPI(lifespan=watching, docs_url=None, redoc_url=None, openapi_url=None)
    if host in LOCAL:  # a foreign page cannot reach us under its own name
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]", "["])
    app.add_middleware(Headers)

    @app.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(live_page("Thistle: live"))

    @app.get("/bokeh.js")
    def library() -> Response:
        return Response(bokeh_script(), media_type="text/javascript")

    @app.get("/page.js")
    def script() -> Response:
        return Response(page_script(), media_type="text/javascript")

    @app.get("/events")
    def events(request: Request) -> StreamingResponse:
        return StreamingResponse(news(reader, request), media_type="text/event-stream")

    @app.get("/map/{key}")
    def map_of(key: str) -> dict[str, Any]:
        watched = reader.runs.get(key)
        if watched is None:
            raise HTTPException(404)
        return watched.map()

    return app
