"""What a run came to: last, best and mean accuracy, a backdoor's lifespan, seconds of the defence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federations import rounds, run, tiny
from thistle.experiments.runfolder import read_json
from thistle.experiments.settings import Attack
from thistle.server.recording.results import (
    NEVER_FELL,
    NO_EVALUATION,
    NO_STOP,
    accuracies,
    averaged,
    backdoor,
    lifespan,
    seconds_of_defence,
)
from thistle.strategies.rules.median import Median
from thistle.strategies.steps.learning import ServerLearning

SUCCESSES = st.dictionaries(st.integers(1, 40), st.floats(0, 1)).map(lambda found: sorted(found.items()))


def lines(every: int, last: int) -> list[dict[str, Any]]:
    """Accuracy is the round's number; the last round is always evaluated."""
    evaluated = [number % every == 0 or number == last for number in range(1, last + 1)]
    return [{"round": i, **({"accuracy": float(i)} if due else {})} for i, due in enumerate(evaluated, 1)]


@pytest.mark.parametrize(
    ("every", "last", "window", "k"),
    [
        (5, 60, 4, 3),
        (5, 60, 2, 2),
        (1, 60, 50, 15),
        (5, 10, 4, 1),
        (1, 1, 4, 1),
        (1, 4, 4, 1),
        (1, 8, 4, 2),
        (7, 9, 4, 2),
    ],
)
def test_the_mean_is_over_the_last_quarter_at_most(every: int, last: int, window: int, k: int) -> None:
    assert averaged(lines(every, last), window) == k
    found = accuracies(lines(every, last), window)
    values = [line["accuracy"] for line in lines(every, last) if "accuracy" in line]
    assert found["evaluations_averaged"] == k
    assert found["last_accuracy"] == found["max_accuracy"] == last
    assert found["final_accuracy"] == pytest.approx(sum(values[-k:]) / k)


@given(st.integers(1, 9), st.integers(1, 200), st.integers(1, 60))
def test_no_evaluation_before_the_last_quarter_is_averaged(every: int, last: int, window: int) -> None:
    k = averaged(lines(every, last), window)
    used = [line["round"] for line in lines(every, last) if "accuracy" in line][-k:]
    assert 1 <= k <= window and (used == [last] or min(used) > 0.75 * last)


def test_a_run_that_ends_low_says_so_beside_its_best() -> None:
    bad = [{"round": i, "accuracy": value} for i, value in enumerate([0.1, 0.9, 0.4, 0.2], 1)]
    found = accuracies(bad, 4)
    assert (found["last_accuracy"], found["max_accuracy"], found["final_accuracy"]) == (0.2, 0.9, 0.2)


@given(SUCCESSES, st.integers(1, 40))
def test_a_lifespan_ends_with_the_first_evaluation_below_one_half(found: list[tuple[int, float]], stop: int) -> None:
    said = lifespan(found, stop)
    rounds_ = said["backdoor_lifespan"]
    by_round, after = dict(found), [number for number, _ in found if number > stop]
    before = [number for number, _ in found if number <= stop]
    assert ("backdoor_lifespan_reason" in said) == (rounds_ is None)
    if rounds_ is None:
        expected = NEVER_FELL if after else NO_EVALUATION
        assert said["backdoor_lifespan_reason"] == expected and all(by_round[number] >= 0.5 for number in after)
    elif rounds_ == 0:
        assert after and by_round[before[-1]] < 0.5
    else:
        assert by_round[stop + rounds_] < 0.5
        assert all(by_round[number] >= 0.5 for number in after if number < stop + rounds_)
        assert not before or by_round[before[-1]] >= 0.5


@given(SUCCESSES)
def test_without_a_stop_there_is_no_lifespan(found: list[tuple[int, float]]) -> None:
    assert lifespan(found, 0) == {"backdoor_lifespan": None, "backdoor_lifespan_reason": NO_STOP}


def test_a_lifespan_by_hand() -> None:
    def of(*successes: tuple[int, float]) -> Any:
        return lifespan(successes, 10)["backdoor_lifespan"]

    assert of((5, 0.9), (10, 1.0), (15, 0.6), (20, 0.5), (25, 0.49), (30, 0.9)) == 15
    assert of((5, 0.9), (10, 0.2), (15, 0.1)) == 0
    assert of((15, 0.1)) == 5, "nobody looked before"
    assert of((5, 0.9), (15, 0.5)) is None and of((5, 0.9), (10, 0.1)) is None


def test_who_knows_no_attack_knows_no_lifespan() -> None:
    found = [{"round": 1, "attack_success": 0.75}, {"round": 2}, {"round": 3, "attack_success": 0.25}]
    assert backdoor(found, None) == {"attack_success": 0.25}
    assert backdoor([{"round": 1, "accuracy": 0.5}], Attack(kind="zero", stop=1)) == {}
    assert backdoor(found, Attack(kind="backdoor", stop=1)) == {"attack_success": 0.25, "backdoor_lifespan": 2}


@pytest.mark.parametrize(("stop", "reason"), [(0, NO_STOP), (4, NO_EVALUATION), (2, None)])
def test_the_summary_of_a_backdoor_agrees_with_its_lines(tmp_path: Path, stop: int, reason: str | None) -> None:
    keys = {"attack.kind": "backdoor", "attack.fraction": 0.3, "attack.stop": stop, "evaluate.every": 1}
    folder = run(tiny(tmp_path, **keys))
    summary = read_json(folder.summary)
    successes = [line["attack_success"] for line in rounds(folder)]
    assert summary["attack_success"] == successes[-1]
    if reason:
        assert (summary["backdoor_lifespan"], summary["backdoor_lifespan_reason"]) == (None, reason)
    else:
        gone = [number for number, value in enumerate(successes[1:]) if value < 0.5]
        assert summary["backdoor_lifespan"] == (gone[0] if gone else None)


PAUSE = 0.05


def test_the_defences_seconds_are_those_of_the_rule_without_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, learn = Median.rule, ServerLearning.__call__

    def slow_rule(*arguments: Any) -> Any:
        time.sleep(PAUSE)
        return rule(*arguments)

    def slow_learning(*arguments: Any) -> Any:
        time.sleep(10 * PAUSE)
        return learn(*arguments)

    monkeypatch.setattr(Median, "rule", slow_rule)
    monkeypatch.setattr(ServerLearning, "__call__", slow_learning)
    keys = {"strategy.name": "median", "strategy.gamma": 0.1, "task.server-data": "rendered", "rounds": 3}
    folder = run(tiny(tmp_path, **keys))
    spent = [line["seconds_defence"] for line in rounds(folder)]
    assert all("server.step" in line and line["seconds_training"] > 11 * PAUSE for line in rounds(folder))
    assert sorted(spent)[1] >= PAUSE
    assert all(line["seconds_defence"] <= line["seconds_training"] - 10 * PAUSE for line in rounds(folder))
    assert read_json(folder.summary)["seconds_defence"] == sorted(spent)[1] == seconds_of_defence(rounds(folder))


@pytest.mark.parametrize("name", ["flwr-fedavg", "server-alone", "fltrust"])
def test_every_kind_of_strategy_is_timed(tmp_path: Path, name: str) -> None:
    folder = run(tiny(tmp_path, **{"strategy.name": name, "task.server-data": "rendered"}))
    assert all(0 <= line["seconds_defence"] <= line["seconds_training"] for line in rounds(folder))


def test_rounds_without_anything_to_aggregate_are_not_timed() -> None:
    assert seconds_of_defence([{"round": 1, "kept": "too few"}]) is None
    assert seconds_of_defence([{"seconds_defence": 3.0}, {"kept": ""}, {"seconds_defence": 1.0}]) == 2.0
