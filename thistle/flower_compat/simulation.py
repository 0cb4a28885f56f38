"""Flower's Simulation Runtime, called directly: runs one after the other in this process, on workers that stay.

`flwr run` needs a SuperLink (a web server and a database), a process that waits for runs, a program for each run and,
in that, a Ray with workers of its own. What that program calls in the end is called here: a third of the CPU time of a
short run, and nearly all of it in those after the first, was theirs. Flower's public name for this is deprecated, takes
no run config and starts Ray anew each time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from flwr.app import Context, Message, RecordDict
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import ServerApp
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.exit import register_signal_handlers
from flwr.supercore.run import Run
from flwr.supercore.telemetry import EventType
from ray._private.node import Node

from thistle.flower_compat import ray_workers
from thistle.flower_compat.messages import identify
from thistle.flower_compat.ray_actor import ClientAppActor, load

LEAVE = EventType.PYTHON_API_RUN_SIMULATION_LEAVE
HELPERS = ("start_monitor", "start_log_monitor", "start_api_server")
"""What Ray's `Node` starts for autoscaling, for showing workers' output and for a dashboard: a second of CPU time."""

ray_workers.repair()
LOCAL = os.environ.get("RAY_ADDRESS", "local") == "local"


class Kept(raybackend.RayBackend):
    """Our backend; it outlives the runs that it serves."""

    def __init__(self, client: str, workers: int, device: str) -> None:
        """Ray and this many workers start now; each imports the module `client` first."""
        self.wanted = client, workers, device
        self.workers = workers
        self.keys: dict[str, Any] = {}
        """Of the run that is going on."""
        arguments = {"num_cpus": workers, "logging_level": "ERROR", "log_to_driver": False}
        super().__init__({"init_args": arguments, "client_resources": {"num_cpus": 1}})  # type: ignore[dict-item]
        gpus = 0.0 if device == "cpu" else ray.cluster_resources().get("GPU", 0.0)
        self.client_resources = {"num_cpus": 1, "num_gpus": share(gpus, workers)}
        self.actor_type, self.actor_kwargs = ray.remote(ClientAppActor), {"client": client}  # type: ignore[dict-item]
        super().build(partial(load, client))

    def init_ray(self, backend_config: Any) -> None:
        """Here, without helpers; workers have this process's environment. Or as one of a cluster's jobs."""
        if not LOCAL:
            super().init_ray(backend_config)
            return
        for name in HELPERS:
            setattr(Node, name, lambda self, **_: None)
        ray.init(include_dashboard=False, **backend_config[self.init_args_key])

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """With the run's keys, which Flower would read from an app's folder."""
        told = Context(context.run_id, context.node_id, context.node_config, context.state, self.keys)
        answer, after = super().process_message(message, told)
        context.state = after.state
        return answer, context

    def build(self, app_fn: Any) -> None:
        """The workers are there, and know what they run."""

    def terminate(self) -> None:
        """Another run may follow."""

    def end(self) -> None:
        super().terminate()


_kept: list[Kept] = []


def keep_workers(client: str, workers: int, device: str) -> None:
    """From now on runs of this process use these workers, which are started unless they are there.

    A cluster's are started anew for each run: the user's own code is sent with a job.
    """
    if _kept and LOCAL and _kept[0].wanted == (client, workers, device):
        return
    while _kept:
        _kept.pop().end()
    _kept.append(Kept(client, workers, device))
    raybackend.RayBackend = lambda _: _kept[0]  # type: ignore[misc,assignment]


def share(gpus: float, workers: int) -> float:
    """Of a GPU for each worker: none has parts of two, and Ray counts in ten-thousandths."""
    return math.floor(1e4 / math.ceil(workers / gpus)) / 1e4 if gpus else 0.0


def simulate(server: ServerApp, keys: Mapping[str, Any]) -> None:
    """One run with these keys by the workers that are kept."""
    identify()
    client, workers, _ = _kept[0].wanted
    _kept[0].keys = dict(keys)
    run = Run.create_empty(run_id=1)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(keys))
    _run_simulation(
        num_supernodes=workers,
        exit_event=LEAVE,
        client_app=load(client),
        server_app=server,
        server_app_context=context,
        run=run,
    )


def end_when_told() -> None:
    """On SIGTERM, as Flower's own programs do: what they want done at the end is done."""
    register_signal_handlers(LEAVE, "stopped from outside")
