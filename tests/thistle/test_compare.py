"""`thistle compare`: the figures by hand, the table, the CSV, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.federations import run, tiny
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, read_json, write_json
from thistle.results.figures import Finished, converged_at


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean run and an attacked one, for real."""
    out = tmp_path_factory.mktemp("runs")
    run(tiny(out, "clean"))
    run(tiny(out, "bad", **{"attack.kind": "sign-flip", "attack.fraction": 0.5, "strategy.name": "rfa"}))
    return out


def fake(home: Path, tmp_path: Path, accuracies: list[float | None], final: float, malicious: list[int]) -> RunFolder:
    """A run folder with other numbers in it; round i took i seconds."""
    folder = RunFolder(tmp_path / "fake")
    folder.path.mkdir()
    for name in ("experiment.toml", "status.json"):
        (folder.path / name).write_bytes((home / "bad" / name).read_bytes())
    lines = [{"round": i, "seconds": float(i), "accuracy": value} for i, value in enumerate(accuracies, 1)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(folder.summary, {"final_accuracy": final})
    write_json(folder.truth, {"malicious": malicious})
    return folder


def test_the_figures_by_hand(home: Path, tmp_path: Path) -> None:
    folder = fake(home, tmp_path, [0.2, None, 0.6, 0.5, 0.51, 0.49], 0.5, [1, 2, 3])
    figures = Finished.read(folder).figures()
    assert figures.average == pytest.approx(0.46)
    assert (figures.last, figures.maximum, figures.final, figures.averaged) == (0.49, 0.6, 0.5, None)
    assert figures.deviation == pytest.approx((((0.26) ** 2 + 0.14**2 + 0.04**2 + 0.05**2 + 0.03**2) / 5) ** 0.5)
    assert figures.seconds_per_round == pytest.approx(21 / 6)
    assert figures.seconds_to_maximum == 1 + 2 + 3
    assert figures.convergence == 4 and figures.after_convergence == pytest.approx(0.5)


def test_robustness_by_hand(home: Path, tmp_path: Path) -> None:
    clean = Finished.read(RunFolder(home / "clean"))
    attacked = Finished.read(fake(home, tmp_path, [0.3], clean.final / 2, [0, 1, 2]))
    found = attacked.against(clean)
    assert found.degradation == pytest.approx(0.5) and found.tolerance == pytest.approx(0.5)
    assert found.quotient == pytest.approx(min(1.0, clean.final / 2 / 0.75))
    assert clean.against(clean).degradation == 0
    everybody = Finished.read(RunFolder(home / "clean"))
    assert everybody.against(clean).quotient == pytest.approx(clean.final)


@pytest.mark.parametrize(
    ("accuracies", "first"), [([0.1, 0.5, 0.5], 1), ([0.5], 0), ([0.5, 0.1, 0.5], 2), ([0.48, 0.52, 0.5], 0)]
)
def test_convergence(accuracies: list[float], first: int) -> None:
    assert converged_at(accuracies) == first


def test_a_table_and_a_csv_file(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "figures.csv"
    done = CliRunner().invoke(app, ["compare", "clean", str(home / "bad"), "--out", str(home), "--csv", str(target)])
    assert done.exit_code == 0, done.output
    with target.open(newline="") as file:
        clean, bad = list(csv.DictReader(file))
    assert (clean["run"], clean["attack"], bad["run"], bad["strategy"]) == ("clean", "none", "bad", "rfa")
    assert bad["attack"] == "sign-flip 50%"
    assert float(bad["final"]) == read_json(home / "bad" / "summary.json")["final_accuracy"]
    assert float(bad["tolerance"]) == pytest.approx(1 - float(bad["degradation"]))
    summary = read_json(home / "bad" / "summary.json")
    assert (float(bad["last"]), int(bad["averaged"])) == (summary["last_accuracy"], summary["evaluations_averaged"])
    assert "sign-flip" in done.output and "robustness quotient" in done.output
    assert "last accuracy" in done.output and "mean of the last k evaluations" in done.output


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["compare", *arguments])
    assert isinstance(done.exception, UserError)
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_what_is_refused_in_one_line(home: Path, tmp_path: Path) -> None:
    out = ["--out", str(home)]
    assert "no run folder there" in refusal("clean", "nothing", *out)
    assert "is not a clean run (attack.kind = sign-flip)" in refusal("bad", "clean", *out)
    folder = fake(home, tmp_path, [None], 0.5, [])
    assert "no round in metrics.jsonl has an accuracy" in refusal("clean", str(folder.path), *out)
    folder.set_status("stopped")
    assert "is not finished (stopped); thistle resume" in refusal("clean", str(folder.path), *out)
    folder.status.unlink()
    assert "is not finished (no status)" in refusal("clean", str(folder.path), *out)
    text = (home / "bad" / "experiment.toml").read_text().replace('name = "digits"', 'name = "mnist"')
    folder = RunFolder(home / "bad")
    (tmp_path / "other").mkdir()
    for path in folder.path.iterdir():
        if path.is_file():
            (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "other" / "experiment.toml").write_text(text)
    assert "task.name = mnist, but the clean run's is digits" in refusal("clean", str(tmp_path / "other"), *out)
    assert "--csv" in refusal("clean", "bad", *out, "--csv", str(tmp_path / "no" / "where.csv"))
