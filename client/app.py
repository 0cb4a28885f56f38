"""The ClientApp of a host: runs each of its clients through the app of that client's kind.

One message names many clients (exchange.cohort); an exception in one of them is that client's alone.
"""

from __future__ import annotations

import copy
import platform
import sys
from collections.abc import Iterator, Mapping

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from attacks.roles import SIMULATED, node_orders, orders
from client import calibrated, honest, malicious
from client.data import find_share
from client.terms import local_terms
from client.work import cached_model
from exchange.cohort import ACTION, pack_replies, unpack_request
from exchange.experiment import Experiment
from exchange.settings import Value
from tasks.training import pick_device

app = ClientApp()

APPS: dict[str, ClientApp] = {"honest": honest.app, "malicious": malicious.app, "calibrated": calibrated.app}


def role(client: int, number: int, experiment: Experiment, node_config: Mapping[str, Value]) -> str:
    """Which of the apps this client is in round `number`."""
    if orders(client, number, experiment, node_config):
        return "malicious"
    return "honest" if experiment.client.plain else "calibrated"


@app.query("ping")
def ping(message: Message, context: Context) -> Message:
    """Make ready (data mapped, network built) and say what this host is."""
    if "role" in context.node_config:
        node_orders(context.node_config)
    config = message.content.config_records["config"]
    experiment = local_terms(Experiment.of(context.run_config), config, context.node_config)
    share = find_share(experiment, config, context.node_config)
    device = pick_device(experiment.runtime.device)
    cached_model(experiment.network, share.shape, share.classes, experiment.seed, device)
    host = ConfigRecord({"torch": torch.__version__, "machine": platform.machine(), "device": str(device)})
    return Message(RecordDict({"host": host}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client alone: what a federation without cohorts sends."""
    config = message.content.config_records["config"]
    experiment = local_terms(Experiment.of(context.run_config), config, context.node_config)
    client = int(context.node_config["partition-id"])
    number = int(config["server-round"])  # type: ignore[arg-type]
    return APPS[role(client, number, experiment, context.node_config)](message, context)


@app.train(ACTION)
def train_cohort(message: Message, context: Context) -> Message:
    """Every client that the message names, one after the other."""
    content, ids = unpack_request(message.content)
    return Message(pack_replies(_run(message, content, ids, context)), reply_to=message)


def _run(
    message: Message, content: RecordDict, ids: list[int], context: Context
) -> Iterator[tuple[int, RecordDict | BaseException]]:
    for client in ids:
        try:
            yield client, train(_message_for(client, message, content), _context_for(client, context)).content
        except Exception as error:
            yield client, error


def _in_ray() -> bool:
    """Whether this process is a Ray worker: so are the hosts of a simulation, never a deployed node's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _message_for(client: int, message: Message, content: RecordDict) -> Message:
    """The message that this client would have got, had it a node of its own."""
    metadata = copy.copy(message.metadata)
    metadata.message_type = "train"
    metadata.dst_node_id = client
    return Message(metadata=metadata, content=content)  # type: ignore[call-overload]


def _context_for(client: int, context: Context) -> Context:
    """The context that goes with it; nothing is kept on a host between rounds."""
    return Context(
        run_id=context.run_id,
        node_id=client,
        node_config={**context.node_config, "partition-id": client, **({SIMULATED: True} if _in_ray() else {})},
        state=RecordDict(),
        run_config=context.run_config,
    )
