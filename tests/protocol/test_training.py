"""Requests and replies as both sides write and read them."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

from thistle.protocol.hostinfo import RECORD, HostInfo
from thistle.protocol.training import LOSSES, TrainReply, TrainRequest, ask_for_factors, asked_rank, task_facts

SENT = {"server-round": 3, "lr": 0.1, "proximal-mu": 0.5, "report-losses": True, "report-classes": True}
TOLD = {"client.objective": "ckl", "something": "else", **task_facts(("a", "b"), (1, 8, 8))}


def test_what_a_request_says() -> None:
    terms = (("client.objective", "ckl"),)
    expected = TrainRequest(3, 0.1, 0.5, True, True, None, ("a", "b"), (1, 8, 8), terms=terms)
    assert TrainRequest.read(ConfigRecord({**SENT, **TOLD})) == expected
    assert TrainRequest.read(ConfigRecord()) == TrainRequest()


def test_which_rank_a_request_asks_for() -> None:
    config = ConfigRecord({"lr": 0.1})
    assert asked_rank(config) is None
    assert asked_rank(ask_for_factors(config, 0.25)) == 0.25 and "rank" not in config
    assert TrainRequest.read(ask_for_factors(config, 0.25)).rank == 0.25


def test_a_reply_holds_what_was_asked_for() -> None:
    arrays = ArrayRecord({"weight": Array(np.zeros(2, np.float32))})
    plain = TrainReply(arrays, num_examples=5, seconds=0.5, loss=1.0).records()
    assert plain["arrays"] is arrays
    assert dict(plain["metrics"]) == {"num-examples": 5, "seconds": 0.5, "loss": 1.0}  # type: ignore[arg-type]
    more = TrainReply(arrays, 5, 0.5, 1.0, loss_before=2.0, loss_after=0.5, class_counts=[2, 3]).records()["metrics"]
    assert more.keys() == {"num-examples", "seconds", "loss", "class-counts"} | LOSSES


def test_a_host_is_read_as_it_was_written() -> None:
    info = HostInfo(torch="2.13", ray_node="abc", clients="0-9")
    record = info.records().config_records[RECORD]
    assert record["ray-node"] == "abc"
    assert HostInfo.read({**record, "unknown": "x"}) == info  # type: ignore[dict-item]
    assert "clients" not in info.about() and info.about()["ray-node"] == "abc"
