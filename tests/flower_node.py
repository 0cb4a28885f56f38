"""A SuperNode in this process, as its ClientApps see it: Flower's own state and Runtime API, on loopback.

with RuntimeAPI() as node:
    run, words = node.deliver(bundle)  # a message for an app, and what Flower would start its program with
    subprocess.run([program, *words], env=...)
    node.reply(run)
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from itertools import count

import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message

from thistle.engines.flower_programs import free_port
from thistle.flower_compat.messages import identify

NAME, VERSION, NODE = "probe", "1.0.0", 7
PROJECT = f"""
[project]
name = "{NAME}"
version = "{VERSION}"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "app:app"
clientapp = "app:app"
"""
RUNS = count(1)
PATIENCE = 240.0


def bundle(files: Mapping[str, str]) -> bytes:
    """An app as Flower sends it; its ClientApp is `app` in app.py."""
    texts = {"pyproject.toml": PROJECT, **files}
    return build_fab_from_files({path: text.encode() for path, text in texts.items()})[0]


class RuntimeAPI:
    """What a SuperNode holds between the network and its ClientApps."""

    def __init__(self) -> None:
        identify()
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state, self.port = factory.state(), free_port()
        self.state.set_node_id(NODE)
        config = uvicorn.Config(create_app(factory), "127.0.0.1", self.port, log_level="error", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> RuntimeAPI:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def receive(self, app: bytes, content: RecordDict | None = None) -> tuple[int, int]:
        """A message for this app has come in; returns the run and the task."""
        run = Run.create_empty(next(RUNS))
        run.fab_hash, run.series_id = hashlib.sha256(app).hexdigest(), run.run_id
        run.fab_id, run.fab_version = f"tests/{NAME}", VERSION
        self.state.store_run(run)
        self.state.store_fab(Fab(run.fab_hash, app, {}))
        context = Context(run.run_id, NODE, {}, RecordDict(), {}, series_id=run.series_id)
        self.state.set_run_series_context(run.series_id, context)
        message = Message(content or RecordDict(), dst_node_id=NODE, message_type="train")
        message.metadata.__dict__["_run_id"] = run.run_id
        _insert_message(message, self.state, self.state.object_store)
        task = self.state.create_task(TaskType.CLIENT_APP, run.run_id, fab_hash=run.fab_hash)
        assert task is not None
        return run.run_id, task

    def deliver(self, app: bytes, content: RecordDict | None = None) -> tuple[int, list[str]]:
        """A run with one message, and the arguments of the ClientApp's process for it."""
        run, task = self.receive(app, content)
        token = self.state.claim_task(task)
        assert token is not None
        where = ["--runtime-api-address", f"127.0.0.1:{self.port}"]
        return run, [*where, "--token", token, "--insecure", "--parent-pid", f"{os.getpid()}"]

    def reply(self, run: int) -> Message:
        """When it is all there."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.state.get_messages_legacy(run_ids=[run], is_reply=True, limit=1)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (message,) = found
        name, store = message.metadata.message_id, self.state.object_store
        tree = store.get_object_tree(name)
        contents: dict[str, bytes] = {}
        for part in iterate_object_tree(tree):
            while not (content := store.get(part.object_id)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            contents[part.object_id] = content
        whole = inflate_object_from_contents(name, contents)
        assert isinstance(whole, Message)
        return whole
