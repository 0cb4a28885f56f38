"""The ClientApp of a host: runs each of its clients through the app of that client's kind.

One message names many clients (thistle.protocol.cohort); what goes wrong in one of them is that client's alone.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator, Mapping
from typing import cast

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from thistle.attacks.roles import SIMULATED, node_orders, orders
from thistle.client import calibrated, honest, malicious
from thistle.client.data import OWN, find_share
from thistle.client.limits import Alarm, Watchdog
from thistle.client.terms import local_terms
from thistle.client.work import cached_model, experiment_of
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Value
from thistle.flower_compat import ray_workers
from thistle.flower_compat.messages import message_for
from thistle.protocol.cohort import ACTION, pack_replies, unpack_request
from thistle.protocol.records import CONFIG, config_of
from thistle.tasks.freed_memory import keep_freed_memory
from thistle.tasks.training import pick_device

keep_freed_memory()
ray_workers.repair()

app = ClientApp()

APPS: dict[str, ClientApp] = {"honest": honest.app, "malicious": malicious.app, "calibrated": calibrated.app}


def role(client: int, number: int, experiment: Experiment, node_config: Mapping[str, Value]) -> str:
    """Which of the apps this client is in round `number`."""
    if orders(client, number, experiment, node_config):
        return "malicious"
    return "honest" if experiment.client.plain else "calibrated"


@app.query("ping")
def ping(message: Message, context: Context) -> Message:
    """Make ready (data mapped, network built) and say what this host is, and which clients it wants to be."""
    if "role" in context.node_config:
        node_orders(context.node_config)
    device = _make_ready(config_of(message), context)
    host = ConfigRecord(
        {
            "torch": torch.__version__,
            "machine": platform.machine(),
            "device": str(device),
            "name": platform.node(),
            "ray-node": ray_workers.ray_node(),
            "data": "own" if OWN in context.node_config else "",
            "clients": str(context.node_config.get("clients", "")),
        }
    )
    return Message(RecordDict({"host": host}), reply_to=message)


def _make_ready(config: ConfigRecord, context: Context) -> torch.device:
    """What a process does once: map the data, build the network."""
    experiment = local_terms(experiment_of(context), config, context.node_config)
    share = find_share(experiment, config, context.node_config)
    device = pick_device(experiment.runtime.device)
    cached_model(experiment.network, share.shape, share.classes, experiment.seed, device)
    return device


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client alone: what a federation without cohorts sends."""
    return _train_as(int(context.node_config["partition-id"]), message, context, experiment_of(context))


def _train_as(client: int, message: Message, context: Context, experiment: Experiment) -> Message:
    """By the app of the client's kind."""
    config = config_of(message)
    number = int(config["server-round"])  # type: ignore[arg-type]
    local = local_terms(experiment, config, context.node_config)
    return APPS[role(client, number, local, context.node_config)](message, context)


@app.train(ACTION)
def train_cohort(message: Message, context: Context) -> Message:
    """Every client that the message names, one after the other."""
    return Message(pack_replies(_run_all(message, context)), reply_to=message)


def _run_all(message: Message, context: Context) -> Iterator[tuple[int, RecordDict | BaseException | str]]:
    experiment = experiment_of(context)
    limit = experiment.client.time_limit
    over = message.metadata.created_at + message.metadata.ttl
    contents = unpack_request(message.content)
    _make_ready(cast(ConfigRecord, next(iter(contents.values()))[CONFIG]), context)  # not at a client's expense
    node_config = {**context.node_config, **({SIMULATED: True} if _in_ray() else {})}
    with Watchdog(limit, mortal=not _in_users_process(context)) as watchdog, Alarm() as alarm:
        for client, content in contents.items():
            left = over - time.time()
            if left <= 0:
                yield client, "timeout"
                continue
            watchdog.watch()
            asked, own = message_for(client, "train", message, content), _context_for(client, context, node_config)
            try:
                alarm.set(min(limit, left))
                try:
                    reply = _train_as(client, asked, own, experiment)
                finally:
                    alarm.clear()
                result = reply.content if reply.has_content() else str(reply.error.reason)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit and a cut-off included
                yield client, error
            else:
                yield client, result


def _in_users_process(context: Context) -> bool:
    """Whether this is the inline engine's process, which is not ours to end."""
    return context.node_config.get(SIMULATED) is True


def _in_ray() -> bool:
    """Whether this process is a Ray worker: so are the hosts of a simulation, never a deployed node's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _context_for(client: int, context: Context, node_config: Mapping[str, Value]) -> Context:
    """The context that goes with it; nothing is kept on a host between rounds."""
    return Context(
        run_id=context.run_id,
        node_id=client,
        node_config={**node_config, "partition-id": client},
        state=RecordDict(),
        run_config=context.run_config,
    )
