"""Packing and unpacking: every client gets its own back, or a reason."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from thistle.protocol.cohort import pack_replies, pack_request, unpack_replies, unpack_request
from thistle.protocol.text import last_line, printable


def test_a_request_names_its_clients_and_nothing_else_changes() -> None:
    content = RecordDict({"config": ConfigRecord({"lr": 0.1})})
    packed = pack_request({3: content, 1: content})
    assert set(packed) == {"config", "cohort"}
    seen = unpack_request(packed)
    assert list(seen) == [3, 1]
    assert all(dict(one) == dict(content) for one in seen.values())


def test_what_clients_share_travels_once_and_what_they_do_not_reaches_its_own() -> None:
    model = ArrayRecord([np.zeros(3, np.float32)])
    contents = {
        client: RecordDict({"arrays": model, "config": ConfigRecord({"rank": client})}) for client in (7, 2, 30)
    }
    contents[2]["memory"] = MetricRecord({"x": 1.0})
    packed = pack_request(contents)
    assert set(packed) == {"arrays", "cohort", "7/config", "2/config", "30/config", "2/memory"}
    seen = unpack_request(packed)
    assert {client: dict(content) for client, content in seen.items()} == {c: dict(r) for c, r in contents.items()}


def test_replies_failures_and_gaps() -> None:
    good = RecordDict({"metrics": MetricRecord({"loss": 0.5})})
    packed = pack_replies([(1, good), (2, ValueError("first\nsecond")), (4, "killed")])
    unpacked = dict(unpack_replies(packed, [1, 2, 3, 4]))
    assert dict(unpacked[1]) == dict(good)  # type: ignore[arg-type]
    assert unpacked[2] == "second"
    assert unpacked[3] == "the host sent no result for this client"
    assert unpacked[4] == "killed"


def test_a_host_cannot_answer_for_clients_it_was_not_given() -> None:
    packed = pack_replies([(1, RecordDict()), (9, RecordDict({"m": MetricRecord({"x": 1})}))])
    assert [client for client, _ in unpack_replies(packed, [1])] == [1]


def test_text_from_elsewhere_is_made_safe() -> None:
    assert printable("a\x1b[31mb\n\t<script>") == "ab <script>"
    assert len(printable("x" * 10_000)) == 200
    assert last_line("Traceback\n  File\nValueError: no\n\n") == "ValueError: no"
    assert last_line("") == "no reason given"
