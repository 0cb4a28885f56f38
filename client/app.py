"""The ClientApp of a host: runs each of its clients as the kind of client that it is.

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

from thistle.attacks.roles import SIMULATED, node_orders, remembers, standing_orders
from thistle.client import calibrated, honest, malicious
from thistle.client.data import OWN, Share, find_share, summary_of
from thistle.client.limits import Alarm, Watchdog
from thistle.client.memory import recall, retain
from thistle.client.scoring import score_of
from thistle.client.terms import check_training, local_terms
from thistle.client.work import Train, Work, cached_model, experiment_of
from thistle.experiments.settings import Attack, Value
from thistle.flower_compat import ray_workers
from thistle.protocol.cohort import ACTION, pack_replies, unpack_request
from thistle.protocol.hostinfo import OWN_DATA, HostInfo
from thistle.protocol.records import CONFIG, config_of
from thistle.protocol.sites import COLUMNS, summary_records
from thistle.protocol.training import TrainRequest
from thistle.tasks.freed_memory import keep_freed_memory
from thistle.tasks.training import check_precision, pick_device

keep_freed_memory()
ray_workers.repair()

app = ClientApp()

KINDS: dict[str, Train] = {"honest": honest.train, "malicious": malicious.train, "calibrated": calibrated.train}


def role(work: Work) -> str:
    """Which kind of client this is in this round."""
    if work.attack:
        return "malicious"
    return "honest" if work.experiment.client.plain else "calibrated"


@app.query("ping")
def ping(message: Message, context: Context) -> Message:
    """Make ready (data mapped, network built) and say what this host is, and which clients it wants to be."""
    if "role" in context.node_config:
        node_orders(context.node_config)
    device, share = _make_ready(TrainRequest.read(config_of(message)), context)
    host = HostInfo(
        torch=torch.__version__,
        machine=platform.machine(),
        device=str(device),
        name=platform.node(),
        ray_node=ray_workers.ray_node(),
        data=OWN_DATA if OWN in context.node_config else "",
        held_out=str(len(share.held_out)) if share.held_out else "",
        clients=str(context.node_config.get("clients", "")),
        site=str(context.node_config.get("site", "")),
    )
    return Message(host.records(), reply_to=message)


def _make_ready(request: TrainRequest, context: Context) -> tuple[torch.device, Share]:
    """Check how clients should train; then what a process does once: map the data, build the network."""
    experiment = local_terms(experiment_of(context), request, context.node_config)
    check_training(experiment.client)
    share = find_share(experiment, request, context.node_config)
    device = pick_device(experiment.runtime.device)
    check_precision(experiment.client.precision, device)
    cached_model(experiment.network, share.shape, share.classes, experiment.seed, device)
    return device, share


@app.query(COLUMNS)
def columns(message: Message, context: Context) -> Message:
    """Sum up the columns of the node's own table, so that all sites read theirs in the same way."""
    return Message(summary_records(summary_of(experiment_of(context), context.node_config)), reply_to=message)


@app.evaluate(ACTION)
def evaluate_cohort(message: Message, context: Context) -> Message:
    """How good the model is on this host's own held-out data: one answer for the client that was asked."""
    torch.set_num_threads(1)
    contents = unpack_request(message.content)
    experiment = experiment_of(context)
    answers = [
        (client, score_of(content, client, experiment, context.node_config)) for client, content in contents.items()
    ]
    return Message(pack_replies(answers), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client alone: what a federation without cohorts sends."""
    client = int(context.node_config["partition-id"])
    return Message(_answer(message.content, client, context, context.node_config), reply_to=message)


def _answer(content: RecordDict, client: int, context: Context, node_config: Mapping[str, Value]) -> RecordDict:
    """What this client sends back. A real node's attacker remembers here, a simulated one by the server's messages."""
    experiment = experiment_of(context)
    stays = "role" in node_config and remembers(standing_orders(client, experiment, node_config) or Attack())
    asked = recall(content, context.state, client) if stays else content
    work = Work.of(asked, client, experiment, node_config)
    reply = KINDS[role(work)](work).records()
    return retain(reply, context.state, client) if stays else reply


@app.train(ACTION)
def train_cohort(message: Message, context: Context) -> Message:
    """Every client that the message names, one after the other."""
    return Message(pack_replies(_run_all(message, context)), reply_to=message)


def _run_all(message: Message, context: Context) -> Iterator[tuple[int, RecordDict | BaseException | str]]:
    experiment = experiment_of(context)
    limit = experiment.client.time_limit
    over = message.metadata.created_at + message.metadata.ttl
    contents = unpack_request(message.content)
    first = next(iter(contents.values()))
    _make_ready(TrainRequest.read(cast(ConfigRecord, first[CONFIG])), context)  # before any client's clock starts
    node_config = {**context.node_config, **({SIMULATED: True} if _in_ray() else {})}
    if _in_ray() and not _in_users_process(context):
        ray_workers.obey_sigterm()
    with Watchdog(limit, mortal=not _in_users_process(context)) as watchdog, Alarm() as alarm:
        for client, content in contents.items():
            left = over - time.time()
            if left <= 0:
                yield client, "timeout"
                continue
            watchdog.watch()
            try:
                alarm.set(min(limit, left))
                try:
                    reply = _answer(content, client, context, node_config)
                finally:
                    alarm.clear()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit and a cut-off included
                yield client, error
            else:
                yield client, reply


def _in_users_process(context: Context) -> bool:
    """Whether this is the inline engine's process, which is not ours to end."""
    return context.node_config.get(SIMULATED) is True


def _in_ray() -> bool:
    """Whether this process is a Ray worker: so are the hosts of a simulation, never a deployed node's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
