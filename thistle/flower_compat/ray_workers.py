"""Flower's Ray workers, repaired.

Flower puts a worker that died back into its pool, where it fails every later message at once; it serves at most
cores + 4 workers; it looks for messages ten times per second and announces no replies; it starts as many workers as
a cluster has processors and gives them no code. Flower loads the ClientApp in the process that owns the workers
before it makes them, so that importing `thistle.client.app` is the moment to put this right.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from thistle.protocol.wakeup import REPLIES, REQUESTS

ENGINE = "flwr.server.superlink.fleet.vce.vce_api"
"""Only the process that owns a simulation's workers has loaded it."""
BACKEND = "flwr.server.superlink.fleet.vce.backend.raybackend"
MOST = 10_000
"""Workers that can be served; a thread is started for each that there is."""
PROMPT = 0.1
"""Seconds after which the engine's threads look whether the run is over."""
PASSED_ON = ("THISTLE_CACHE", "OMP_NUM_THREADS")
"""What workers on another machine must know of our environment."""


def repair() -> None:
    """Put our backend into the simulation engine, if this process is one."""
    engine: Any = sys.modules.get(ENGINE)
    if engine is None or engine.add_messages_to_queue is _hand_out:
        return
    raybackend: Any = import_module(BACKEND)
    raybackend.RayBackend = _repaired(raybackend)
    engine.ThreadPoolExecutor = partial(ThreadPoolExecutor, max_workers=MOST)
    engine.add_messages_to_queue = _hand_out
    engine.put_message_into_state = _bring_in
    engine.Queue = PromptQueue


class PromptQueue(Queue[Any]):
    """A thread that waits one second for a message would notice the run's end a second late."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block, None if timeout is None else min(timeout, PROMPT))


def ray_node() -> str:
    """The Ray node that this process works on; empty where Ray has no part in it."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray is not None and ray.is_initialized() else ""


def obey_sigterm() -> None:
    """Called in a worker: when it is told to end, it does so at once.

    Ray's own handler raises SystemExit wherever the process is. In the middle of a client's training this would count
    as that client's failure, and a server that is being ended, too, could still complete the round without it.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def _hand_out(state: Any, queue: Any, nodes_mapping: dict[int, int], f_stop: threading.Event) -> None:
    """Messages for the workers, as Flower hands them out, but as soon as they arrive."""
    while not f_stop.is_set():
        REQUESTS.wait()
        for node in nodes_mapping:
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)


def _bring_in(state: Any, queue: Any, f_stop: threading.Event) -> None:
    """The workers' replies, as Flower brings them in, but the server is told."""
    while not f_stop.is_set():
        with suppress(Empty):
            state.store_message_res(queue.get(timeout=PROMPT))
            REPLIES.notify()


def _repaired(raybackend: Any) -> Any:
    """Flower's backend and pool, subclassed where they are: Ray is not imported before it is needed."""
    import ray
    from ray.exceptions import RayActorError

    class Pool(raybackend.BasicActorPool):  # type: ignore[misc]
        """A pool in which a new worker takes the place of a dead one, and every worker has its turn."""

        def __init__(self, actor_type: Any, client_resources: dict[str, Any], actor_kwargs: dict[str, Any]) -> None:
            super().__init__(actor_type, client_resources, actor_kwargs)
            options = {**client_resources, "scheduling_strategy": "SPREAD"}
            self.create_actor_fn = lambda: actor_type.options(**options).remote(**(actor_kwargs or {}))

        def fetch_result_and_return_actor_to_pool(self, future: Any) -> Any:
            try:
                return super().fetch_result_and_return_actor_to_pool(future)
            except RayActorError:
                ray.kill(self._future_to_actor[future])  # if it is only out of reach, it must not come back
                self._future_to_actor[future] = self.create_actor_fn()
                raise

        def add_actor_back_to_pool(self, future: Any) -> None:
            self.pool.insert(0, self._future_to_actor.pop(future))

    class Backend(raybackend.RayBackend):  # type: ignore[misc]
        """A backend with that pool, on a Ray of its own or as one of a cluster's jobs."""

        def init_ray(self, backend_config: dict[str, Any]) -> None:
            arguments = dict(backend_config.get(self.init_args_key) or {})
            if os.environ.get("RAY_ADDRESS", "local") == "local":
                super().init_ray(backend_config)
                self.workers = MOST  # as many as that Ray has processors
                return
            self.workers = int(arguments.pop("num_cpus", MOST))  # a cluster has what it has
            root = Path(__file__).resolve().parents[2]
            environment = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
            ray.init(runtime_env={"working_dir": str(root), "env_vars": environment}, **arguments)

        actor_type: Any = raybackend.ClientAppActor

        def build(self, app_fn: Any) -> None:
            self.pool = Pool(self.actor_type, self.client_resources, self.actor_kwargs)
            self.pool.add_actors_to_pool(min(self.workers, self.pool.actors_capacity))
            self.app_fn = app_fn

    return Backend
