"""The suite of `thistle stress` and the logic of its search, without any runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thistle.attacks.checks import check_attack
from thistle.attacks.poisoning.parts import OnUpdate
from thistle.attacks.registry import ATTACKS, attack, attacks
from thistle.attacks.registry import setting as field
from thistle.attacks.stress.halving import (
    FINALISTS,
    Tried,
    after_full_runs,
    after_short_runs,
    first_cut,
    pause,
    rank,
    rounds_of,
    second_cut,
)
from thistle.attacks.stress.suite import Candidate, candidates, digest, variations
from thistle.experiments.settings import Attack, NonNegative

scores = st.sampled_from([0.1, 0.2, 0.5, 0.9]) | st.floats(0, 1)
tried = st.lists(st.tuples(st.sampled_from("abcdefg"), scores), min_size=1, max_size=40).map(
    lambda pairs: [Tried(number, kind, score) for number, (kind, score) in enumerate(pairs)]
)


@given(tried)
def test_short_runs_spare_one_of_each_kind_and_the_worst_of_the_rest(all_: list[Tried[int]]) -> None:
    kept = after_short_runs(all_)
    kinds = {one.kind for one in all_}
    assert {one.kind for one in kept} == kinds
    assert len(kept) == len(set(kept)) == max((len(all_) + 1) // 2, len(kinds))
    assert kept == [one for one in rank(all_) if one in kept], "the most harmful first"
    for kind in kinds:
        mine = [one for one in all_ if one.kind == kind]
        assert min(mine, key=lambda one: (one.score, one.candidate)) in kept, "of each kind its most harmful"
    firsts = {min((o for o in all_ if o.kind == k), key=lambda one: (one.score, one.candidate)) for k in kinds}
    dropped = [one.score for one in all_ if one not in kept]
    others = [one.score for one in kept if one not in firsts]
    assert not dropped or not others or max(others) <= min(dropped)


@given(tried)
def test_full_runs_leave_the_worst_third_and_at_least_three(all_: list[Tried[int]]) -> None:
    kept = after_full_runs(all_)
    assert len(kept) == min(len(all_), max(FINALISTS, -(-len(all_) // 3)))
    dropped = [one.score for one in all_ if one not in kept]
    assert not dropped or max(one.score for one in kept) <= min(dropped)


@given(tried)
def test_of_equals_the_one_that_was_named_first_goes_on(all_: list[Tried[int]]) -> None:
    equal = [Tried(one.candidate, one.kind, 0.5) for one in all_]
    assert rank(equal) == equal
    assert after_full_runs(equal) == equal[: second_cut(len(equal))]


@given(st.integers(1, 500), st.integers(1, 60))
def test_a_pause_is_at_an_evaluation_or_there_is_none(rounds: int, every: int) -> None:
    short = pause(rounds, every)
    assert 1 <= short <= rounds
    assert short == rounds or short % every == 0


@pytest.mark.parametrize(
    ("rounds", "every", "short"), [(60, 5, 20), (60, 20, 20), (60, 60, 60), (6, 2, 2), (4, 10, 4), (100, 10, 30)]
)
def test_a_pause_is_after_about_a_third(rounds: int, every: int, short: int) -> None:
    assert pause(rounds, every) == short


def test_the_rounds_of_a_search_are_known_beforehand() -> None:
    assert (first_cut(37, 15), second_cut(19)) == (19, 7)
    assert rounds_of(37, 15, 60, 20, 3, 2) == 37 * 20 + 19 * 40 + 7 * 2 * 60 + 3 * 2 * 3 * 60
    assert first_cut(5, 4) == 4 and second_cut(2) == 2


def test_every_registered_attack_is_in_a_suite_and_each_candidate_is_a_valid_experiment() -> None:
    everything = candidates("all")
    assert {one.kind for one in everything} == {
        name for name, cls in attacks().items() if cls.suite != "none" and not cls.needs
    }
    assert "none" not in {one.kind for one in everything}
    assert len({one.label for one in everything}) == len(everything)
    for one in everything:
        keys = {key.removeprefix("attack.").replace("-", "_"): value for key, value in one.keys.items()}
        check_attack(Attack.model_validate({**keys, "fraction": 0.3}), clients=50, rounds=60, classes=10)


def test_the_known_worst_cases_are_in_the_suite() -> None:
    labels = [one.label for one in candidates("standard")]
    known = ["ipm, strength 0.5", "ipm, strength 0.1", "sign-flip, strength 1", "zero", "mimic, omniscient"]
    assert {*known, "alie", "min-max, perturbation sign"} <= set(labels)
    assert {"backdoor"} == {one.suite for one in candidates("backdoor")}
    assert candidates("all") == candidates("standard") + candidates("backdoor")
    assert labels.index("ipm, strength 0.5") < labels.index("ipm, strength 10"), "the most important settings first"


def test_an_attack_enters_by_registration_alone() -> None:
    before = digest(candidates("standard"))
    try:

        @attack("shout", knows="honest clients")
        class Shout(OnUpdate):
            """Loud."""

            strength: NonNegative = field("how loud", default=1.0, declared=(1.0, 2.0))
            tone: NonNegative = field("how high", default=1.0, tried=(3.0, 4.0))
            other: NonNegative = field("not tried", default=1.0)

        mine = [one.label for one in candidates("standard") if one.kind == "shout"]
        assert mine[0] == "shout, strength 1, tone 3, omniscient" and len(mine) == 4
        assert digest(candidates("standard")) != before
    finally:
        del ATTACKS._entries["shout"]
    assert digest(candidates("standard")) == before


def test_variations_are_jitter_for_colluders_and_sleepers_for_all() -> None:
    ipm = Candidate("ipm", "standard", (("attack.strength", 0.5),))
    assert [one.words for one in variations(ipm, 60)] == ["strength 0.5, jitter 0.1", "strength 0.5, start 31"]
    assert [one.label for one in variations(Candidate("zero", "standard"), 60)] == ["zero, start 31"]
    assert variations(Candidate("zero", "standard"), 1) == []
