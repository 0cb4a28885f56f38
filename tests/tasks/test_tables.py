"""Tables: rows to values, faults by their line, and one scheme for sites that show each other no row."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Task
from thistle.tasks.dataset import Dataset
from thistle.tasks.sources import read_source
from thistle.tasks.sources.registry import Wanted
from thistle.tasks.sources.table import summarise
from thistle.tasks.tables.agree import CATEGORIES, Summed, agree, read_summary, write_summary
from thistle.tasks.tables.scheme import FAR, Scheme

HEAD = "age,sex,ward,label"
ROWS = [f"{30 + i},{'mf'[i % 2]},{i % 3},{'no' if i % 5 else 'yes'}" for i in range(40)]


def written(path: Path, rows: list[str] = ROWS, head: str = HEAD) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return f"csv:{path}"


def read(name: str, scheme: str = "", **options: object) -> Dataset:
    return read_source(name, options=Task.model_validate({"name": name, **options}), scheme=scheme)


def inputs(data: Dataset) -> tuple[str, ...]:
    return Scheme.read(data.scheme).inputs


def test_numbers_are_scaled_and_categories_become_inputs(cache: Path, tmp_path: Path) -> None:
    data = read(written(tmp_path / "a.csv"), categorical="ward")
    assert inputs(data) == ("age", "sex = f", "sex = m", "ward = 0", "ward = 1", "ward = 2")
    assert (len(data.train), len(data.test)) == (32, 8) and data.classes == ("no", "yes")
    age = data.train.pixels[:, 0]
    assert abs(age.mean()) < 1e-6 and age.std() == pytest.approx(1.0, abs=1e-6)
    assert data.train.pixels[:, 1:3].sum(1).tolist() == [1] * 32
    assert data.train.bounds == (-math.inf, math.inf) and data.train.pixels.dtype == np.float32
    assert np.bincount(data.test.labels).tolist() == [6, 2], "each class by its share"


def test_missing_values_are_the_centre_and_are_told(cache: Path, tmp_path: Path) -> None:
    rows = [row.replace("33,", "NA,", 1).replace(",f,", ",?,", 1) if i == 3 else row for i, row in enumerate(ROWS)]
    written(tmp_path / "set/train.csv", rows)
    data = read(written(tmp_path / "set/test.csv").replace("/test.csv", ""))
    assert inputs(data)[:4] == ("age", "age is missing", "sex = f", "sex = m")
    assert data.train.pixels[3, :4].tolist() == [0, 1, 0, 0]
    assert data.test.pixels[:, 1].sum() == 0


def test_an_unknown_category_is_read_as_missing_and_said(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path / "set/train.csv")
    written(tmp_path / "set/test.csv", [ROWS[0].replace(",m,", ",x,")])
    data = read(f"csv:{tmp_path / 'set'}")
    assert data.test.pixels[0, 1:3].tolist() == [0, 0]
    assert "column 'sex': 1 rows hold categories that the federation does not know, such as 'x'" in caplog.text


@pytest.mark.parametrize(
    ("head", "rows", "options", "words"),
    [
        ("age,sex,ward", ROWS[:1], {}, r"line 2 has 4 values, the first line has 3"),
        (HEAD, [], {}, "has no rows"),
        (
            HEAD,
            ROWS,
            {"label": "class"},
            "has no column 'class'; set task.label to the one with the class, of age, sex",
        ),
        (HEAD, [*ROWS, "1,m,0,"], {}, "line 42 has no label in column 'label'"),
        (HEAD, ROWS, {"label": "age", "ignore": "x"}, ""),
        ("age,sex,ward,label", [f"{i},m,0,{i / 7}" for i in range(9)], {}, "regression is not supported"),
        ("age,age,ward,label", ROWS, {}, "column 'age' occurs twice"),
        (HEAD, ["inf,m,0,no", *ROWS], {}, "line 2, column 'age': 'inf' is not a finite number"),
        (HEAD, [*ROWS, "old,m,0,no"], {}, r"'old' is not a finite number: correct it, .* or add .* task\.categorical"),
        (HEAD, [f"{i},name {i},0,no" for i in range(300)], {}, r"column 'sex': 'name \d+' is not a number, and \d+"),
        (HEAD, ROWS, {"categorical": "stage"}, "has no column 'stage', which task.categorical names"),
        (HEAD, ROWS, {"ignore": "age,sex,ward"}, "no column besides the label"),
    ],
)
def test_faults_are_one_line(
    cache: Path, tmp_path: Path, head: str, rows: list[str], options: dict[str, object], words: str
) -> None:
    name = written(tmp_path / "a.csv", rows, head)
    if not words:
        assert len(read(name, **options).classes) == 40, "whole numbers are classes"
        return
    with pytest.raises(UserError, match=words) as caught:
        read(name, **options)
    assert "\n" not in str(caught.value) and "a.csv" in str(caught.value)


def test_other_separators_and_marks(cache: Path, tmp_path: Path) -> None:
    rows = [row.replace(",", ";") for row in ROWS]
    data = read(written(tmp_path / "a.csv", rows, "\ufeff" + HEAD.replace(",", ";")))
    assert data.shape == (4,)


def test_whoever_reads_by_a_scheme_needs_its_columns(cache: Path, tmp_path: Path) -> None:
    scheme = read(written(tmp_path / "a.csv")).scheme
    without = written(tmp_path / "b.csv", [row.partition(",")[2] for row in ROWS], "sex,ward,label")
    with pytest.raises(UserError, match=r"b\.csv: has no column 'age', which the federation uses"):
        read(without, scheme)
    text = written(tmp_path / "c.csv", [ROWS[0], "old" + ROWS[1][2:], *ROWS[2:]])
    with pytest.raises(UserError, match=r"c\.csv: line 3, column 'age': 'old' is not a finite number"):
        read(text, scheme)
    more = written(tmp_path / "d.csv", [f"x,{row}" for row in ROWS], f"more,{HEAD}")
    np.testing.assert_array_equal(read(more, scheme).train.pixels, read(f"csv:{tmp_path / 'a.csv'}").train.pixels)


def test_a_test_set_alone(cache: Path, tmp_path: Path) -> None:
    scheme = read(written(tmp_path / "a.csv")).scheme
    name = written(tmp_path / "set/test.csv").replace("/test.csv", "")
    with pytest.raises(UserError, match="the scale of its columns is not known"):
        read(name)
    data = read_source(name, need_train=False, scheme=scheme)
    assert (len(data.train), len(data.test)) == (0, 40) and data.shape == (4,)


# agreement ----------------------------------------------------------------------------------------


def site(mean: float, deviation: float = 1.0, categories: tuple[str, ...] = ("a", "b")) -> dict[str, Summed]:
    return {"age": Summed(True, 50, 0, mean, deviation), "ward": Summed(False, 50, 0, categories=categories)}


def test_equal_sites_agree_on_what_all_rows_together_would_give(tmp_path: Path) -> None:
    (column, _) = agree([site(10, 3.0), site(10, 3.0), site(10, 3.0)]).columns
    assert (column.centre, column.scale) == (10, 3.0)
    (column, _) = agree([site(8, 3.0), site(10, 3.0), site(12, 3.0)]).columns
    assert column.centre == 10 and column.scale == pytest.approx(math.hypot(3, 2))


@pytest.mark.parametrize("claim", [1e29, -1e29, 0.0])
def test_one_lying_site_stays_within_the_others(claim: float) -> None:
    liar = {
        "age": Summed(True, 10**12, 10**12, claim, 1e29),
        "ward": Summed(False, 9, 0, categories=tuple(f"junk {i}" for i in range(CATEGORIES))),
        "fake": Summed(True, 5, 0, 1.0, 1.0),
    }
    age, ward = agree([site(9, 2.0), site(11, 3.0), liar]).columns
    assert 9 <= age.centre <= 11 and age.scale <= 10
    assert {"a", "b"} <= set(ward.categories) and len(ward.categories) <= CATEGORIES


def test_a_liar_cannot_turn_numbers_into_categories_or_take_a_column_away() -> None:
    liar = {"age": Summed(False, 50, 0, categories=("x",))}
    scheme = agree([site(9), site(11), liar])
    assert [column.name for column in scheme.columns] == ["age", "ward"] and scheme.columns[0].numeric


def test_a_site_names_no_category_that_few_of_its_rows_share(cache: Path, tmp_path: Path) -> None:
    rows = [*ROWS * 2, "50,unique,0,no"]
    said = summarise(Wanted(written(tmp_path / "a.csv", rows), options=Task()))
    assert said["sex"].categories == ("f", "m") or said["sex"].categories == ("m", "f")
    assert read_summary(write_summary(said)) == said
    assert "unique" not in write_summary(said)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": "x"},
        {"mean": math.inf},
        {"deviation": -1.0},
        {"deviation": math.nan},
        {"categories": [1]},
        {"count": None},
    ],
)
def test_a_summary_from_elsewhere_is_checked(change: dict[str, object]) -> None:
    said = json.loads(write_summary(site(1.0)))
    said["age"] |= change
    with pytest.raises(UserError, match="summary of columns cannot be used"):
        read_summary(json.dumps(said))
    for bad in ("", "[]", "{}", '{"a": 1}', json.dumps({"a\n": said["ward"]})):
        with pytest.raises(UserError, match="summary of columns cannot be used"):
            read_summary(bad)


def test_what_lies_far_out_is_cut(cache: Path, tmp_path: Path) -> None:
    written(tmp_path / "set/train.csv")
    data = read(written(tmp_path / "set/test.csv", ["1e9,m,0,no"]).replace("/test.csv", ""))
    assert data.test.pixels[0, 0] == FAR


def test_parquet_says_what_is_missing_or_reads_the_same(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(UserError, match=r"pyarrow is not installed, .* pip install 'thistle-fl\[parquet\]'"):
            read(f"parquet:{path}")
        return
    cells = list(zip(*[row.split(",") for row in ROWS], strict=True))
    typed = [[int(cell) for cell in cells[0]], *map(list, cells[1:])]
    parquet.write_table(pyarrow.table(dict(zip(HEAD.split(","), typed, strict=True))), path)
    same = read(written(tmp_path / "a.csv"))
    np.testing.assert_array_equal(read(f"parquet:{path}").train.pixels, same.train.pixels)


def test_the_embedded_table_is_the_same_for_ever() -> None:
    data = read_source("breast-cancer")
    assert (len(data.train), len(data.test), data.shape) == (398, 171, (30,))
    assert data.classes == ("benign", "malignant")
    assert data.train.labels[:8].tolist() == [1] * 8 and data.train.pixels[0, 0] == pytest.approx(1.8024637)
