"""Clients with honest weights and lying batch-norm statistics, through whole federations (benchmarks/buffers.py)."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.buffers import KNOWN, LIES, WHEN, accuracy, rounds

QUICK = {"rounds": 6, "task.partition": "iid", "client.epochs": 2, "client.batch-size": 10}
STRATEGIES = ["fedavg", "rfa", "fltrust", "rofsl", "krum", "flwr-fedavg"]
CELLS = [("mean 1e6", "once", 1), ("variance 1e6", "always", 1), ("mean 1e6", "always", 4)]


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Any:
    yield
    KNOWN.clear()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lies_about_buffers_do_no_harm(strategy: str) -> None:
    """Whatever the weights come to: the same as with those clients' honest buffers, but for noise."""
    keys = {**QUICK, "strategy.name": strategy}
    honest = accuracy(keys)[-1]
    found = {cell: accuracy(keys, cell[2], WHEN[cell[1]], cell[0])[-1] for cell in CELLS}
    assert honest > 50 and min(found.values()) > honest - 4, (honest, found)


@pytest.mark.parametrize("strategy", ["fedavg", "flwr-qfedavg", "rofsl"])
@pytest.mark.parametrize("lie", ["mean 1e6", "variance 0", "variance 1e6"])
def test_a_damaged_model_recovers(strategy: str, lie: str) -> None:
    """All clients lie in round 3: honest replies to what comes of it are accepted, and the model is whole again."""
    assert lie in LIES
    lines = rounds({**QUICK, "strategy.name": strategy, "rounds": 12}, 10, WHEN["once"], lie)
    assert [line["rejected"] for line in lines] == [0] * 12
    assert lines[-1]["accuracy"] > 0.8


def test_statistics_of_the_server() -> None:
    keys = {**QUICK, "strategy.name": "fedavg", "strategy.batch-norm": "server", "task.server-data": "holdout:200"}
    assert accuracy(keys, 6, WHEN["always"], "mean 1e6")[-1] > 80


FEDRBN = {**QUICK, "model.name": "norms:small2d", "client.objective": "fedrbn", "client.steps": 1, "rounds": 6}


@pytest.mark.parametrize("lie", ["mean 1e6", "variance 1e6"])
def test_two_sets_of_statistics(lie: str) -> None:
    """FedRBN: liars say that they used both sets. The adversarial one decides; here it is the honest clients' own."""
    for few, liars in (("", 4), ("4-6", 1)):
        keys = {**FEDRBN, "client.adversarial-clients": few}
        assert accuracy(keys, liars, WHEN["always"], lie)[-1] > accuracy(keys, liars)[-1] - 3


def test_a_liar_alone_with_a_set_of_statistics() -> None:
    keys = {**FEDRBN, "client.adversarial-clients": "0"}
    assert accuracy(keys, 1, WHEN["always"], "mean 1e6")[-1] > 80
