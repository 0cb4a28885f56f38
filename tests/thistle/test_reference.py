"""What is generated from the code: types in words, rows of settings, and their places in the documents."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from thistle.experiments.experiment import KEYS, Experiment, flatten_tables
from thistle.experiments.settings import AboveZero, Fraction, Natural, Positive, Section
from thistle.reference import documents
from thistle.reference.parts import declared, keys
from thistle.reference.rows import common_rows, lacking, own_rows, rows, strategy_rows
from thistle.reference.words import in_words
from thistle.strategies.options import Cosine, Rank, Share
from thistle.strategies.registry import find, strategies


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (bool, "boolean"),
        (str, "text"),
        (int, "whole number"),
        (Positive, "whole number ≥ 1"),
        (Natural, "whole number ≥ 0"),
        (AboveZero, "number > 0"),
        (Fraction, "number from 0 to 1"),
        (Share, "number from 0 to below 1"),
        (Rank, "number above 0, up to 1"),
        (Cosine, "number from −1 to 1"),
        (Annotated[float, Field(gt=0.0, lt=1.0)], "number above 0 and below 1"),
        (Annotated[int, Field(le=9)], "whole number ≤ 9"),
        (Literal["a"], "`a`"),
        (Literal["a", "b", "c"], "`a`, `b` or `c`"),
        (bool | Share, "boolean, or number from 0 to below 1"),
        (AboveZero | Literal["auto", "off"], "number > 0, or `auto` or `off`"),
    ],
)
def test_a_type_in_words(annotation: Any, expected: str) -> None:
    assert in_words(annotation) == expected


def test_every_setting_says_what_it_means() -> None:
    sections = [field.annotation for field in Experiment.model_fields.values() if isinstance(field.default, Section)]
    found = [row for section in (Experiment, *sections) for row in rows(section)]  # type: ignore[arg-type]
    assert len(found) == len(KEYS)
    found += [row for cls in strategies().values() for row in strategy_rows(cls)]
    assert all(row.meaning and row.kind for row in found)
    assert not any(row.meaning.endswith(".") or "\n" in row.meaning for row in found)


def test_all_that_can_be_set_is_declared() -> None:
    flat = flatten_tables(tomllib.loads(keys())["tool"]["flwr"]["app"]["config"])
    assert flat == declared() and flat.items() >= KEYS.items()
    assert flat["strategy.theta"] == flat["strategy.q"] == "default"
    assert Experiment.of(flat) == Experiment()


def test_a_strategy_lists_what_differs_from_the_common_settings() -> None:
    assert {row.key for row in own_rows(find("fsl"))} == {
        f"strategy.{name}" for name in ("server-lr", "gamma", "weighted", "class-aware")
    }
    assert own_rows(find("flwr-fedavgm")) == strategy_rows(find("flwr-fedavgm")) != []
    assert own_rows(find("fltrust")) == []
    assert list(lacking(find("zeno"))) == ["strategy.filter"]
    assert {row.key for row in common_rows()} == {*lacking(find("flwr-fedavg"))}


def test_only_what_is_between_the_comments_is_made_anew() -> None:
    first, last = "<!-- generated: model settings (make generate) -->", "<!-- end of model settings -->"
    text = f"before\n{first}\nold\n{last}\nafter\n"
    fresh = documents.regenerated(text)
    assert fresh.startswith(f"before\n{first}\n\n| key |") and fresh.endswith(f" |\n\n{last}\nafter\n")
    assert "old" not in fresh and documents.regenerated(fresh) == fresh
