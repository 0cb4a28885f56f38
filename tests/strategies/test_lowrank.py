"""Ranks, the low-rank exchange and its strategies in whole federations."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn

from tests.federations import model_sha, rounds, run, tiny, verdicts
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.protocol.factors import is_matrix, layer_rank, sides
from thistle.protocol.layout import Layout
from thistle.protocol.svd import thin_svd
from thistle.server.recording.checkpoint import load_checkpoint
from thistle.strategies.build import make_strategy, resolve
from thistle.strategies.dsvd import DSVD, SimilarityWeighting
from thistle.strategies.memory.ranks import LEAST, RANKS, Ranks
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.rounds import Progress, Round, matrices_of
from thistle.strategies.rules.fedcpa import CriticalParameters
from thistle.strategies.steps.lowrank import LowRank

# ---- ranks -----------------------------------------------------------------------------------------------------


def test_ranks_follow_the_quartiles() -> None:
    ranks, memory = Ranks(0.5, 0.05), {}
    gains = np.array([0.0, 1.0, 2.0, 3.0, 4.0])  # quartiles 1 and 3: strictly below and strictly above
    memory |= ranks.after(memory, [2, 3, 5, 8, 9], gains)
    assert ranks.of(memory, [2, 3, 5, 8, 9, 0, 77]).tolist() == [0.45, 0.5, 0.5, 0.5, 0.55, 0.5, 0.5]
    assert np.isnan(RANKS.of(memory, [0, 1, 4, 6, 7])).all()
    memory |= ranks.after(memory, [12, 2**64 - 1], np.array([3.0, 4.0]))
    assert ranks.of(memory, [9, 12, 2**64 - 1]).tolist() == [0.55, 0.45, 0.55]


def test_a_gain_that_is_no_number_is_a_bad_one() -> None:
    gains = np.array([np.nan, np.inf, -np.inf, 1.0, 1.0])
    after = Ranks(0.5, 0.1).after({}, [0, 1, 2, 3, 4], gains)
    assert RANKS.of(after, [0, 1, 2, 3, 4]).tolist() == [0.4, 0.4, 0.4, 0.5, 0.5]
    assert RANKS.of(Ranks(0.5, 0.1).after({}, [0], np.array([np.nan])), [0]).tolist() == [0.4]


def test_ranks_stay_between_nothing_and_everything() -> None:
    ranks, memory = Ranks(0.5, 0.3), {}
    for _ in range(4):
        memory |= ranks.after(memory, [0, 1, 2], np.array([1.0, 2.0, 3.0]))
    assert RANKS.of(memory, [0, 1, 2]).tolist() == [LEAST, 0.5, 1.0]


def test_where_the_matrices_are() -> None:
    layout = Layout.of(nn.Sequential(nn.Conv2d(2, 3, 5), nn.BatchNorm2d(3), nn.Linear(4, 6, bias=False)))
    assert matrices_of(layout) == ((0, 3, 50), (159, 6, 4))
    assert [entry.name for entry in layout.entries if is_matrix(entry)] == ["0.weight", "2.weight"]


def test_updates_are_cut_before_anything_else_where_the_client_has_not() -> None:
    updates = torch.randn(2, 40 * 30 + 4 * 4, generator=torch.Generator().manual_seed(0))
    matrices = ((0, 40, 30), (1200, 4, 4))  # at rank 2, factors of the second would be larger than it is
    ranks = torch.tensor([0.5, 1.0]).double()
    layout = Layout.of(nn.Sequential(nn.Linear(30, 40, bias=False), nn.Linear(4, 4, bias=False)))
    assert matrices_of(layout) == matrices
    round = Round(1, (0, 1), torch.ones(2).double() / 2, torch.zeros(1216), 0.1, None, {}, ranks, layout=layout)
    for factors in (True, False):
        cut = LowRank(factors)(round, Progress.begin(updates.clone())).updates
        first, second = (cut[0, s : s + r * c].view(r, c) for s, r, c in matrices)
        assert torch.equal(first, updates[0, :1200].view(40, 30)) == factors
        assert int(torch.linalg.matrix_rank(second, rtol=1e-5)) == 2
        assert torch.equal(cut[1], updates[1])


# ---- settings --------------------------------------------------------------------------------------------------


def experiment(**more: Any) -> Experiment:
    keys = {key if "." in key else f"strategy.{key}": value for key, value in more.items()}
    return resolve(Experiment.of({"client.per-round": 7, "model.name": "mlp", **keys}))


def steps(**more: Any) -> list[object]:
    strategy = make_strategy(experiment(**more), TASK, Layout.of(nn.Linear(4, 3)))
    assert isinstance(strategy, Pipeline)
    return list(strategy.plan)


@pytest.fixture(scope="module", autouse=True)
def _task() -> None:
    from thistle.tasks.task import cached_task

    global TASK  # noqa: PLW0603
    TASK = cached_task(experiment().task, 0)


TASK: Any = None


def test_dsvd_is_this_list() -> None:
    cut, weighting = steps(name="dsvd")
    assert cut == LowRank(factors=True, decompose="directions")
    assert weighting == SimilarityWeighting((0.34, 0.33, 0.33), True, 0.1)
    paper = steps(name="dsvd", scale="paper")
    assert paper[0] == LowRank(factors=False, decompose="vectors", cuts=False)
    assert paper[1] == SimilarityWeighting((0.34, 0.33, 0.33), False, 1.0)
    assert steps(name="dsvd", **{"similarity-weights": "auto"})[1] == SimilarityWeighting(None, True, 0.1)
    assert steps(name="fedcpa") == [CriticalParameters()]
    assert [type(step).__name__ for step in steps(name="fedsvd")] == ["LowRank", "Aggregation"]
    assert [type(step).__name__ for step in steps(name="dsvd", filter="loss", tau=1.0, gamma=0.5)] == [
        "LowRank",
        "LossFilter",
        "SimilarityWeighting",
        "Clip",
        "ServerLearning",
    ]


def test_who_reports_losses() -> None:
    def asks(**more: Any) -> bool:
        return make_strategy(experiment(**more), TASK, Layout.of(nn.Linear(4, 3))).report_losses

    assert asks(name="dsvd") and asks(name="flwr-qfedavg") and asks(name="rfa", **{"rank-step": 0.1})
    assert not asks(name="dsvd", **{"rank-step": 0.0}) and not asks(name="fedsvd")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"similarity-weights": "0.5,0.5"}, "should be auto or three numbers of 0 or more"),
        ({"similarity-weights": "a,b,c"}, "should be auto or three numbers of 0 or more"),
        ({"similarity-weights": "-0.2,0.6,0.6"}, "should be auto or three numbers of 0 or more"),
        ({"similarity-weights": "-0.2,0.6,0.6", "scale": "paper"}, "should be auto or three numbers of 0 or more"),
        ({"similarity-weights": "nan,0.5,0.5"}, "should be auto or three numbers of 0 or more"),
        ({"similarity-weights": "0.7,0.2,0.2"}, "should sum to 1, not 1.1"),
        ({"scale": "paper", "exchange": "factors"}, "strategy.exchange = factors: with strategy.scale = paper whole"),
        ({"rank-low": 0.8}, "strategy.rank-low = 0.8: should not be above strategy.rank-high = 0.75"),
        ({"pre": "nnm"}, "strategy.pre = nnm: dsvd looks at each client's own update"),
        ({"rank": 0.0}, "strategy.rank = 0.0"),
        ({"temperature": 0.0}, "strategy.temperature = 0.0"),
        ({"name": "fedcpa", "pre": "bucketing"}, "strategy.pre = bucketing: fedcpa looks at"),
        (
            {"name": "flwr-fedavg", "exchange": "factors"},
            "strategy.exchange = factors: flwr-fedavg has no such setting; those that have it: fedavg, rofsl",
        ),
        ({"name": "flwr-krum", "rank-step": 0.1}, "strategy.rank-step = 0.1: flwr-krum has no such setting"),
    ],
)
def test_what_cannot_work_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        experiment(**{"name": "dsvd", **keys})
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["0.7,0.2,0.2", "0.8,100,10000", "0,0,0"])
def test_the_papers_extremes_run_with_a_warning(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "thistle"):
        made = steps(name="dsvd", scale="paper", **{"similarity-weights": text})[1]
        assert isinstance(made, SimilarityWeighting) and made.alpha == tuple(map(float, text.split(",")))
        assert len(caplog.records) == 1 and "not 1" in caplog.text
        caplog.clear()
        steps(name="dsvd", scale="paper", **{"similarity-weights": "0.8,0.1,0.1"})
        assert not caplog.records


def test_the_papers_scale_weighs_whole_updates() -> None:
    """x_{t+1} = x_t + Σ w_i (v_i − x_t), w the softmax of the mean similarities, without a temperature."""
    pipeline = DSVD(scale="paper", similarity_weights="0.5,0.3,0.2", rank_step=0.0)
    updates = torch.randn(4, 25, generator=torch.Generator().manual_seed(3)) / 5
    layout = Layout.of(nn.Linear(4, 5))
    ids, uniform = (1, 2, 3, 4), torch.full((4,), 0.25, dtype=torch.float64)
    half = torch.full((4,), 0.5, dtype=torch.float64)
    round = Round(1, ids, uniform, torch.zeros(25), 0.1, None, ranks=half, layout=layout)
    progress = Progress.begin(updates.clone())
    for step in pipeline.plan:
        progress = step(round, progress)
    spectra = [thin_svd(row[:20].view(5, 4), 2) for row in updates]
    pairs = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            one, other = spectra[i], spectra[j]
            alike = (torch.trace(one.u.T @ other.u) + torch.trace(one.v.T @ other.v)) / 2
            values = torch.linalg.vector_norm(one.sigma - other.sigma)
            whole = torch.linalg.vector_norm((updates[i] - updates[j]).double())
            pairs[i, j] = 0.5 * alike - 0.3 * values - 0.2 * whole
    scores = (pairs.sum(1) - pairs.diagonal()) / 3
    weights = scores.exp() / scores.exp().sum()
    assert progress.weights is not None
    torch.testing.assert_close(progress.weights, weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(progress.step, (weights[:, None] * updates).sum(0).float(), atol=1e-6, rtol=0)


# ---- federations -----------------------------------------------------------------------------------------------


def test_factors_cost_fewer_bytes_and_ranks_move(tmp_path: Path) -> None:
    chosen = {"rounds": 4, "client.per-round": 8, "model.name": "auto", "task.train-size": 240}
    folder = run(tiny(tmp_path, "factors", **chosen, **{"strategy.name": "dsvd"}))
    full = run(tiny(tmp_path, "full", **chosen, **{"strategy.name": "dsvd", "strategy.exchange": "full"}))
    plain = run(tiny(tmp_path, "plain", **chosen))
    for line, other, model in zip(rounds(folder), rounds(full), rounds(plain), strict=True):
        assert line["bytes_up"] < 0.7 * other["bytes_up"]
        assert other["bytes_up"] == model["bytes_up"] == model["bytes_down"]
        assert line["accepted"] + line["filtered"] == 8
    ranks = [{v["rank"] for v in verdicts(folder) if v["round"] == number} for number in (1, 2, 3, 4)]
    assert ranks[0] == {0.5} and len(set().union(*ranks)) > 1
    assert all(abs(rank / 0.05 - round(rank / 0.05)) < 1e-6 for rank in set().union(*ranks))
    assert [v["rank"] for v in verdicts(plain)] == [None] * 32
    assert [v["rank"] for v in verdicts(full)] == [v["rank"] for v in verdicts(folder)], "the same losses either way"
    for a, b in zip(verdicts(folder), verdicts(full), strict=True):
        assert a["weight"] == pytest.approx(b["weight"], rel=1e-2) and a["score"] == pytest.approx(b["score"], abs=1e-2)
    assert sum(v["weight"] for v in verdicts(folder) if v["round"] == 1) == pytest.approx(1)


@pytest.mark.parametrize("name", ["dsvd", "fedsvd", "fedcpa"])
def test_packing_does_not_change_the_model(tmp_path: Path, name: str) -> None:
    chosen = {"strategy.name": name, "rounds": 3, "attack.kind": "sign-flip", "attack.fraction": 0.25}
    shas = {model_sha(run(tiny(tmp_path, f"w{n}", **chosen, **{"runtime.workers": n}))) for n in (1, 3)}
    assert len(shas) == 1


class Killed(BaseException):
    """What ends a process without asking."""


class MortalGrid(InlineGrid):
    """Dies in a given round."""

    number = 3

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waiting = list(message_ids)
        if any(self._pending[n].metadata.group_id == str(self.number) for n in waiting if n in self._pending):
            raise Killed
        return super().pull_messages(waiting)


@pytest.mark.parametrize("exchange", ["factors", "full"])
def test_ranks_survive_a_sudden_end(tmp_path: Path, exchange: str) -> None:
    chosen = {"strategy.name": "dsvd", "strategy.exchange": exchange, "rounds": 4, "client.per-round": 8}
    whole = run(tiny(tmp_path, "whole", **chosen))
    broken = tiny(tmp_path, "broken", **chosen)
    with pytest.raises(Killed):
        run(broken, MortalGrid(client_app, broken, broken.runtime.workers))
    saved = load_checkpoint(RunFolder(tmp_path / "broken").checkpoints)
    assert saved is not None
    kept = next(array for name, array in saved.arrays.items() if name.endswith(RANKS.name))
    assert len(set(kept)) > 1
    resumed = run(tiny(tmp_path, "broken", **chosen, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(whole)
    assert verdicts(resumed) == verdicts(whole)


NORMED = {"model.name": "vgg8", "task.train-size": 24, "client.per-round": 2, "rounds": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"strategy.name": "dsvd", "strategy.filter": "loss", "strategy.tau": 1.0, "strategy.gamma": 0.5},
        {"strategy.name": "dsvd", "strategy.filter": "zeno", "strategy.tau": 1.0, "strategy.weighted": True},
        {"strategy.name": "dsvd", "strategy.similarity-weights": "auto", "strategy.reputation": True},
        {"strategy.name": "dsvd", "strategy.scale": "paper", "strategy.similarity-weights": "0.8,100,10000"},
        {"strategy.name": "dsvd", "strategy.rank": 1.0, "strategy.rank-step": 0.0},
        {"strategy.name": "fedcpa", "strategy.filter": "loss", "strategy.gamma": 0.5},
        {"strategy.name": "krum", "strategy.exchange": "factors", "strategy.rank": 0.25, "client.per-round": 7},
        {"strategy.name": "median", "strategy.rank": 0.3, **NORMED},
        {"strategy.name": "dsvd", **NORMED},
    ],
    ids=lambda more: "-".join(map(str, list(more.values())[:3])),
)
def test_it_combines_with_the_other_parts(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = run(tiny(tmp_path, **{"rounds": 2, **more}))
    assert not any("kept" in line for line in rounds(folder))
    assert all(line["rejected"] == line["failed"] == 0 for line in rounds(folder))
    if more.get("strategy.similarity-weights") == "auto":
        for line in rounds(folder):
            assert sum(line[f"alpha.{term}"] for term in ("vectors", "values", "updates")) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["sign-flip", "gaussian", "zero", "alie", "label-flip"])
def test_attackers_send_factors_too(tmp_path: Path, kind: str) -> None:
    attack = {"attack.kind": kind, "attack.fraction": 0.5, "rounds": 2}
    folder = run(tiny(tmp_path, **attack, **{"strategy.name": "dsvd"}))
    assert all(line["rejected"] == line["failed"] == 0 for line in rounds(folder))
    whole = run(tiny(tmp_path, "whole", **attack))
    assert all(a["bytes_up"] < b["bytes_up"] for a, b in zip(rounds(folder), rounds(whole), strict=True))


def test_noise_and_turned_updates_weigh_little(tmp_path: Path) -> None:
    for kind, most in (("gaussian", 0.01), ("sign-flip", 0.05)):
        chosen = {"attack.kind": kind, "attack.clients": "0,1", "client.per-round": 12, "rounds": 3}
        folder = run(tiny(tmp_path, kind, **chosen, **{"strategy.name": "dsvd"}))
        bad = [v["weight"] for v in verdicts(folder) if v["client"] < 2]
        assert sum(bad) / 3 < most, kind


def test_the_rank_that_a_client_is_asked_for_is_that_of_its_layers() -> None:
    layout = Layout.of(nn.Linear(30, 40))
    [matrix] = matrices_of(layout)
    assert sides(layout.entries[0]) == matrix[1:] and layer_rank(0.5, *matrix[1:]) == 15
