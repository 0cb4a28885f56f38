"""Tables for papers: LaTeX with means, standard errors, and what leads in bold."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

from typer.testing import CliRunner

from tests.pages import write_run, write_sweep
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.report.latex import escaped
from thistle.report.statistics import welch
from thistle.report.sweeps import Group, leaders, read_sweep

AXES: dict[str, list[Any]] = {"strategy.name": ["fedavg", "rofsl"], "attack.fraction": [0.1, 0.3]}


def numbers(cell: str) -> tuple[float, ...]:
    return tuple(map(float, re.findall(r"\d+\.\d", cell)))


def test_a_sweep_becomes_one_table_with_defences_side_by_side(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "a_sweep", seeds=3, axes=AXES)
    done = CliRunner().invoke(app, ["report", str(sweep), "--latex", str(tmp_path / "tex")])
    assert done.exit_code == 0 and "tables: 1 in" in done.stdout
    (file,) = (tmp_path / "tex").iterdir()
    text = file.read_text(encoding="utf-8")
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    assert rows[0] == ["attack.fraction", "fedavg", "rofsl"]
    found = {(group.axes["attack.fraction"], group.axes["strategy.name"]): group for group in read_sweep(sweep).groups}
    for fraction, *cells in rows[1:]:
        groups = [found[fraction, name] for name in rows[0][1:]]
        for cell, group in zip(cells, groups, strict=True):
            mean = fmean(group.values["accuracy"])
            assert numbers(cell)[0] == float(f"{100 * mean:.1f}") and r"$\pm$" in cell
        means = [fmean(group.values["accuracy"]) for group in groups]
        assert [r"\textbf" in cell for cell in cells] == [mean == max(means) for mean in means]


def test_one_seed_has_no_error_and_no_significance(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "a_sweep", seeds=1, axes=AXES)
    assert CliRunner().invoke(app, ["report", str(sweep), "--latex", str(tmp_path / "tex")]).exit_code == 0
    (file,) = (tmp_path / "tex").iterdir()
    text = file.read_text(encoding="utf-8")
    assert "one seed. Bold: the best of its row." in text and r"$\pm$" not in text and "Welch" not in text


def test_runs_become_one_table(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, rounds=8).path for name in ("one_run", "other")]
    where = ["--output", str(tmp_path / "all.html"), "--latex", str(tmp_path / "tex")]
    assert CliRunner().invoke(app, ["report", *map(str, runs), *where]).exit_code == 0
    text = (tmp_path / "tex" / "runs.tex").read_text(encoding="utf-8")
    assert r"one\_run & 73.2 & " in text and r"\caption{Accuracy" in text


def test_the_best_leads_and_says_whether_that_is_more_than_chance() -> None:
    def group(*values: float) -> Group:
        return Group({}, {"accuracy": values}, ())

    best, near, far = group(0.90, 0.92, 0.94), group(0.89, 0.92, 0.93), group(0.50, 0.51, 0.52)
    alone = group(0.9)
    found, sure = leaders([[far, near, best], [far, best], [alone, group(0.8)], [alone], []], "accuracy")
    assert found == [best, best, alone, alone]
    assert sure == [False, True, False, False], "one seed allows no test"
    p = welch(best.values["accuracy"], far.values["accuracy"])
    assert p is not None and p < 0.01


def test_text_is_safe_in_latex() -> None:
    assert escaped("a_b 30 % ± 0.1 – γ λ {x} \\ #") == (
        r"a\_b 30 \% $\pm$ 0.1 -- $\gamma$ $\lambda$ \{x\} \textbackslash{} \#"
    )


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = write_run(tmp_path / "run", rounds=2)
    done = CliRunner().invoke(app, ["report", str(run.path), "--latex", str(tmp_path / "file" / "tex")])
    assert isinstance(done.exception, UserError) and "--latex" in str(done.exception)
