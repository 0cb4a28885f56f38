"""Verdicts joined with the truth: the arithmetic, and what is not judged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federations import rounds, run, tiny
from thistle.client.app import KINDS
from thistle.client.work import Work
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_json, read_lines
from thistle.protocol.training import TrainReply
from thistle.protocol.verdict import Kind, Verdict
from thistle.server.recording.detection import Detection, Score, Truth

COUNT = st.integers(0, 50)
SCORES = st.builds(Score, COUNT, COUNT, COUNT, COUNT)


def truth(**more: Any) -> Truth:
    """Clients 2 and 3 of ten flip signs."""
    chosen = {"task.clients": 10, "attack.kind": "sign-flip", "attack.clients": "2-3"}
    return Truth(Experiment.of({**chosen, **more}))


def verdicts(**kinds: Kind) -> list[Verdict]:
    return [Verdict(int(name.removeprefix("c")), kind) for name, kind in kinds.items()]


@given(SCORES, SCORES)
def test_scores_add_up(a: Score, b: Score) -> None:
    total = a + b
    assert total.true_positive == a.true_positive + b.true_positive
    assert total.false_positive == a.false_positive + b.false_positive
    assert total.false_negative == a.false_negative + b.false_negative
    assert total.true_negative == a.true_negative + b.true_negative
    assert a + Score() == a and a + b == b + a
    assert Detection(a, b, 1) + Detection(b, a, 2) == Detection(total, total, 3)


@given(SCORES)
def test_figures_by_definition_and_none_where_undefined(score: Score) -> None:
    figures = score.figures()
    attackers = score.true_positive + score.false_negative
    excluded = score.true_positive + score.false_positive
    honest = score.false_positive + score.true_negative
    assert figures["recall"] == (score.true_positive / attackers if attackers else None)
    assert figures["precision"] == (score.true_positive / excluded if attackers and excluded else None)
    assert figures["honest_excluded"] == (score.false_positive / honest if honest else None)
    precision, recall = figures["precision"], figures["recall"]
    if not attackers:
        assert figures["f1"] is None
    elif not score.true_positive:
        assert figures["f1"] == 0.0
    else:
        assert precision is not None and recall is not None
        assert figures["f1"] == pytest.approx(2 * precision * recall / (precision + recall))


def test_nothing_judged_gives_no_figures() -> None:
    assert set(Score().figures().values()) == {None}


def test_each_reply_is_one_of_four() -> None:
    seen = verdicts(c0="accepted", c1="filtered", c2="accepted", c3="filtered", c4="rejected", c5="accepted")
    assert truth().score(1, seen).whole == Score(1, 2, 1, 2)
    assert truth().score(1, seen).filter == Score(1, 1, 1, 2), "what the guard rejected never came to the filter"


def test_next_to_no_weight_is_the_wholes_and_not_the_filters() -> None:
    seen = [Verdict(2, "accepted", "rfa", weight=0.001), Verdict(3, "filtered", "loss"), Verdict(4, "accepted", "rfa")]
    found = truth().score(1, seen)
    assert found == Detection(filter=Score(1, 0, 1, 1), whole=Score(2, 1, 0, 0))
    assert found.figures()["filter"]["recall"] == 0.5 and found.figures()["whole"]["recall"] == 1.0


def test_lines_of_the_first_format_are_the_wholes() -> None:
    old = {"true_positive": 1, "false_positive": 2, "false_negative": 3, "true_negative": 4, "failed_attackers": 5}
    now = Detection(Score(1), Score(2), 3)
    assert Detection.of(old) == Detection(whole=Score(1, 2, 3, 4), failed_attackers=5)
    assert Detection.of(now.counts()) == now


def test_rejection_by_the_guard_is_an_exclusion() -> None:
    assert truth().score(1, verdicts(c2="rejected", c3="filtered")).whole == Score(true_positive=2)


def test_who_failed_is_not_judged() -> None:
    assert truth().score(1, verdicts(c0="failed", c2="failed")) == Detection(failed_attackers=1)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, Score(0, 1, 0, 1)), (2, Score(1, 0, 1, 0)), (3, Score(1, 0, 1, 0)), (4, Score(0, 1, 0, 1))],
)
def test_attackers_at_rest_are_honest(number: int, expected: Score) -> None:
    resting = truth(**{"attack.start": 2, "attack.stop": 3})
    assert resting.score(number, verdicts(c2="filtered", c3="accepted")) == Detection(expected, expected)


def test_without_an_attack_all_are_honest() -> None:
    peaceful = truth(**{"attack.kind": "none"})
    assert peaceful.malicious == frozenset()
    score = peaceful.score(1, verdicts(c2="filtered", c3="accepted")).filter
    assert score == Score(0, 1, 0, 1)
    assert score.figures() == {"precision": None, "recall": None, "f1": None, "honest_excluded": 0.5}


def test_the_fraction_is_that_of_all_clients_and_follows_the_seed() -> None:
    def drawn(seed: int) -> frozenset[int]:
        return truth(seed=seed, **{"attack.clients": "", "attack.fraction": 0.3}).malicious

    assert len(drawn(0)) == 3 and drawn(0) == drawn(0) and drawn(0) <= set(range(10))
    assert len({drawn(seed) for seed in range(5)}) > 1


def test_the_document_says_who_what_and_when() -> None:
    document = truth(**{"attack.start": 2, "attack.stop": 3}).document()
    assert document == {"malicious": [2, 3], "kind": "sign-flip", "start": 2, "stop": 3, "period": 0}


def test_a_run_whose_attackers_all_fail_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: Work) -> TrainReply:
        raise ValueError("no ammunition")

    monkeypatch.setitem(KINDS, "malicious", fail)
    keys = {"attack.kind": "sign-flip", "attack.fraction": 0.5, "rounds": 2}
    folder = run(tiny(tmp_path, **keys))
    summary = read_json(folder.summary)
    assert summary["failed_attackers"] == summary["failed"] > 0
    assert "every attacker failed" in folder.log.read_text()
    assert summary["detection"]["whole"]["recall"] is None


def test_attackers_that_behave_to_be_trusted_are_honest_until_then(tmp_path: Path) -> None:
    attack = {"attack.kind": "sign-flip", "attack.fraction": 0.5, "attack.honest-first": 1, "rounds": 6}
    folder = run(tiny(tmp_path, "patient", **attack))
    asked: Counter[int] = Counter()
    malicious = set(read_json(folder.truth)["malicious"])
    verdicts = list(read_lines(folder.verdicts))
    for line in rounds(folder):
        ids = [verdict["client"] for verdict in verdicts if verdict["round"] == line["round"]]
        asked.update(ids)
        attacking = sum(client in malicious and asked[client] > 1 for client in ids)
        whole = line["detection"]["whole"]
        assert whole["true_positive"] + whole["false_negative"] == attacking
    assert any(line["detection"]["whole"]["false_negative"] for line in rounds(folder))
