"""The least that echoes cost where strategy and clients speak Flower: its objects, two Ray actors, one mean.

No checks, no time limits, no records, no weights, no files: each client's request, reply and checked reply is made
once, by Flower's own classes, and the models are written into one block and averaged.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

HEADER = 128
"""Bytes that np.save writes before the values."""


def request(content: RecordDict, client: int) -> Message:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower's messages ask for them
    return Message(content, dst_node_id=client, message_type="train", group_id="1")


def echoes(content: RecordDict, ids: list[int]) -> dict[int, RecordDict]:
    """What a worker does: each client's message, and its reply."""
    replies = {}
    for client in ids:
        asked = request(content, client)
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0, "seconds": 0.0})
        reply = RecordDict({"arrays": asked.content["arrays"], "metrics": metrics})
        replies[client] = Message(reply, reply_to=asked).content
    return replies


def floor(clients: int, floats: int, rounds: int) -> list[float]:
    """Seconds of `rounds` rounds after one that warms up."""
    import ray

    code = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent.parent)}}
    ray.init(runtime_env=code, num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        actor = ray.remote(num_cpus=1)(type("Worker", (), {"echoes": staticmethod(echoes)}))
        workers = [actor.remote() for _ in range(2)]
        return [_round(workers, clients, floats) for _ in range(rounds + 1)][1:]
    finally:
        ray.shutdown()


def _round(workers: list[Any], clients: int, floats: int) -> float:
    import ray

    started = time.perf_counter()
    config = ConfigRecord({"lr": 0.1, "server-round": 1})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(floats, np.float32))}), "config": config})
    asked = [request(content, client) for client in range(clients)]
    shares = [worker.echoes.remote(content, list(range(k, clients, 2))) for k, worker in enumerate(workers)]
    found = {client: reply for share in ray.get(shares) for client, reply in share.items()}
    replies = [Message(found[client], reply_to=message) for client, message in enumerate(asked)]
    checked = [Message(_copied(reply.content), reply_to=message) for reply, message in zip(replies, asked, strict=True)]
    block = np.empty((clients, floats), np.float32)
    for row, reply in zip(block, checked, strict=True):
        row[:] = np.frombuffer(reply.content.array_records["arrays"]["w"].data, np.float32, offset=HEADER)
    block.mean(0)
    return time.perf_counter() - started


def _copied(content: RecordDict) -> RecordDict:
    array = content.array_records["arrays"]["w"]
    kept = ArrayRecord({"w": Array(array.dtype, array.shape, array.stype, array.data)})
    return RecordDict({"arrays": kept, "metrics": MetricRecord(dict(content.metric_records["metrics"]))})
