"""Packing and unpacking: every client gets its own back, or a reason."""

from __future__ import annotations

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from exchange.cohort import pack_replies, pack_request, unpack_replies, unpack_request
from exchange.text import last_line, printable


def test_a_request_names_its_clients_and_nothing_else_changes() -> None:
    content = RecordDict({"config": ConfigRecord({"lr": 0.1})})
    seen, ids = unpack_request(pack_request(content, [3, 1]))
    assert ids == [3, 1]
    assert dict(seen) == dict(content)


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
