"""Who may run which clients: what a node claims is bounded, and takes nothing from another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from thistle.experiments.errors import UserError
from thistle.server.transport.hosts import BINDINGS, Hosts, read_bindings


def answer(claim: object = "", **more: object) -> RecordDict:
    return RecordDict({"host": ConfigRecord({"torch": "2", "clients": claim, **more})})  # type: ignore[dict-item]


def test_hosts_that_claim_nothing_share_everybody() -> None:
    hosts = Hosts(100, 10)
    hosts.join(7, answer())
    hosts.join(5, answer())
    assert hosts.shared and hosts.present() == [5, 7]
    assert list(hosts.available(busy=())) == list(range(100))
    assert hosts.members[7].info.torch == "2"


def test_claims_are_kept_apart() -> None:
    hosts = Hosts(20, 10)
    hosts.join(2**63 + 5, answer("0-4"))
    hosts.join(9, answer("7,10-12"))
    assert hosts.owner(11) == 9 and hosts.owner(0) == 2**63 + 5
    assert hosts.available(busy=()) == [0, 1, 2, 3, 4, 7, 10, 11, 12]
    assert hosts.available(busy={9}) == [0, 1, 2, 3, 4]
    assert hosts.see([9, 30]) == [30]
    assert hosts.available(busy=()) == [7, 10, 11, 12]
    hosts.see([9, 2**63 + 5])
    assert len(hosts.available(busy=())) == 9


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("3-5", "some of them are node 1's"),
        ("", "claims no clients"),
        ("10-25", "outside of 0-19"),
        ("0-99999999999999999999", "outside of 0-19"),
        ("6-17", "more than 10 clients"),
        (",".join(["6-9"] * 4), "more than 10 clients"),
        ("x", "not a client id"),
        ("6" * 20_000, "not text like"),
        (b"6", "not text like"),
    ],
)
def test_a_bad_claim_is_refused_whole(claim: object, reason: str) -> None:
    hosts = Hosts(20, 10)
    hosts.join(1, answer("0-4"))
    with pytest.raises(UserError, match=reason):
        hosts.join(2, answer(claim))
    assert hosts.present() == [1] and hosts.available(busy=()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"host": MetricRecord({"x": 1})}),
        RecordDict({"host": ConfigRecord(), "more": ConfigRecord()}),
        RecordDict({"host": ConfigRecord({str(i): i for i in range(1000)})}),
    ],
)
def test_an_answer_of_another_kind_is_refused(content: RecordDict) -> None:
    with pytest.raises(UserError, match="not what a Thistle host sends"):
        Hosts(20, 10).join(1, content)


def test_what_a_node_says_of_itself_is_made_safe() -> None:
    hosts = Hosts(20, 10)
    hosts.join(1, answer("", machine="\x1b[31m" + "x" * 10_000))
    assert len(hosts.members[1].info.machine) == 200 and "\x1b" not in hosts.members[1].info.machine


def test_who_is_away_can_be_replaced_who_is_there_cannot() -> None:
    hosts = Hosts(20, 10)
    hosts.join(1, answer("0-4"))
    hosts.see([])
    hosts.join(2, answer("0-4"))
    assert hosts.owner(3) == 2
    hosts.see([1, 2])
    assert hosts.available(busy=()) == [0, 1, 2, 3, 4]
    assert {hosts.owner(client) for client in range(5)} == {2}


def test_who_claims_nothing_is_left_out_as_soon_as_somebody_does() -> None:
    hosts = Hosts(20, 10)
    hosts.join(1, answer())
    hosts.join(2, answer("0-4"))
    assert hosts.present() == [2]
    with pytest.raises(UserError, match="claims no clients"):
        hosts.join(3, answer())


def test_what_the_administrator_bound_counts_not_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bindings.json"
    path.write_text(json.dumps({"1": "0-4", "2": "5-9"}))
    monkeypatch.setenv(BINDINGS, str(path))
    hosts = Hosts(20, 10, read_bindings())
    hosts.join(1, answer("0-9"))
    hosts.join(2, answer())
    assert np.array_equal(hosts.available(busy=()), np.arange(10)) and hosts.owner(7) == 2
    with pytest.raises(UserError, match="no clients are bound to it"):
        hosts.join(3, answer("10-12"))


@pytest.mark.parametrize("text", ["[]", "{", '{"x": "0-4"}'])
def test_a_broken_bindings_file_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "bindings.json"
    path.write_text(text)
    monkeypatch.setenv(BINDINGS, str(path))
    with pytest.raises(UserError, match=BINDINGS):
        read_bindings()


def test_own_data_is_the_administrators_word_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Hosts(4, 10)
    free.join(1, answer("0-1", data="own"))
    free.join(2, answer("2"))
    assert [free.has_own_data(client) for client in range(4)] == [True, True, False, False]
    path = tmp_path / "bindings.json"
    path.write_text(json.dumps({"1": "0-1", "2": {"clients": "2", "own-data": True, "name": "two"}}))
    monkeypatch.setenv(BINDINGS, str(path))
    bound = Hosts(4, 10, read_bindings())
    bound.join(1, answer(data="own"))
    bound.join(2, answer())
    assert [bound.has_own_data(client) for client in range(4)] == [False, False, True, False]
