"""`thistle report`: what is read from run folders and sweeps, and what comes out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.federations import model_sha, run, tiny
from tests.pages import write_run, write_sweep
from thistle.attacks.roles import active
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_lines, write_json
from thistle.protocol.verdict import Verdict
from thistle.report import clients
from thistle.report.clients import Truth, VerdictLog, client_map, distribution
from thistle.report.page import ASSETS, file_page, report_data, run_map
from thistle.report.reading import number, read_run
from thistle.report.sources import distinct_names, runs_below, sort_out, titles
from thistle.report.statistics import holm, mean_and_error, welch
from thistle.report.sweeps import Sweep, as_page, best_map, make_map, read_sweep


def unpack(text: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)


def cell(found: dict[str, Any], row: str, column: str) -> dict[str, Any]:
    (one,) = [cell for cell in found["cells"] if (cell["row"], cell["column"]) == (row, column)]
    return one


def test_a_real_run_is_read_whole(tmp_path: Path) -> None:
    keys = {"attack.kind": "sign-flip", "attack.fraction": 0.3, "evaluate.attacks": "fgsm", "strategy.name": "rofsl"}
    folder = run(tiny(tmp_path, **keys))
    read = read_run(folder.path, "mine")
    assert (read.status, read.problems) == ("finished", [])
    assert read.columns["round"] == [1, 2, 3, 4]
    assert [value is None for value in read.columns["accuracy"]] == [True, False, True, False]
    assert read.withstood.keys() == {"natural", "fgsm"} or read.withstood.keys() == {"fgsm"}
    assert read.experiment["strategy.name"] == "rofsl"
    found = run_map(folder.path)
    cells = unpack(found["cells"], np.uint8, (len(found["clients"]), 4))
    assert (cells > 0).sum() == 16
    assert found["distribution"]["groups"].keys() <= {"honest", "malicious"}


def test_an_evaluation_counts_only_for_the_model_it_was_made_of(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, **{"evaluate.attacks": "fgsm"}))
    document = {"pgd20": 0.25, "per_class": {"pgd20": {}}, "model_sha256": model_sha(folder)}
    write_json(folder.path / "robustness.json", document)
    assert read_run(folder.path, "mine").withstood == {"pgd20": 0.25}
    write_json(folder.path / "robustness.json", document | {"model_sha256": "of before"})
    assert "fgsm" in read_run(folder.path, "mine").withstood


def test_damage_is_passed_over_and_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=3)
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "accuracy": NaN, "seconds": "soon", "loss": 1e999}\n')
        file.write('{"round": \n[1]\n{"round": -1}\n{"round": 1.5}\n{"round": 5, "accur')
    (folder.path / "summary.json").write_text("{")
    read = read_run(folder.path, "run")
    assert read.columns["round"] == [1, 2, 3, 4]
    assert [read.columns[name][-1] for name in ("accuracy", "seconds", "loss")] == [None] * 3
    assert read.problems == ["summary.json: cannot be read as JSON", "metrics.jsonl: 4 damaged lines skipped"]
    file_page(report_data([folder.path], []), "damaged")


def test_what_json_cannot_say_is_shown_without_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2)
    with folder.experiment.open("a") as file:
        file.write("[odd]\nday = 2024-05-01\nlimits = [inf, nan, 1.5, true]\n")
    folder.summary.write_text('{"final_accuracy": 0.5, "max_accuracy": 1e999, "deep": ' + "[" * 500 + "]" * 500 + "}")
    run = read_run(folder.path, "run")
    assert run.experiment["odd.day"] == "2024-05-01" and run.experiment["odd.limits"] == [None, None, 1.5, True]
    assert run.summary["final_accuracy"] == 0.5 and run.summary["max_accuracy"] is None
    done = CliRunner().invoke(app, ["report", str(folder.path)])
    assert done.exit_code == 0, done.exception
    folder.experiment.write_text(f"x = {'[' * 5000}{']' * 5000}")
    assert read_run(folder.path, "run").problems == ["experiment.toml: cannot be read as TOML"]
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text(
        '{"axes": {}, "cells": [{"folder": "x", "axes": {}, "seed": Infinity}]}'
    )
    with pytest.raises(UserError, match="cannot be read as a sweep"):
        read_sweep(tmp_path / "sweep")


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "run")
    for name in ("metrics.jsonl", "summary.json", "verdicts.jsonl"):
        outside = tmp_path / name
        (folder.path / name).rename(outside)
        (folder.path / name).symlink_to(outside)
    (tmp_path / "runs" / "link").symlink_to(write_run(tmp_path / "elsewhere").path)
    read = read_run(folder.path, "run")
    assert "round" not in read.columns and read.summary == {}
    assert [problem.partition(":")[0] for problem in read.problems] == ["summary.json", "metrics.jsonl"]
    assert run_map(folder.path)["rounds"] == []
    assert runs_below(tmp_path / "runs") == [folder.path]


def test_a_killed_run_is_called_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", finished=False)
    (folder.path / ".lock").write_bytes(b"")
    assert read_run(folder.path, "run").status == "running"
    monkeypatch.setattr("thistle.report.reading.QUIET", 0.0)
    assert read_run(folder.path, "run").status == "gone"
    with folder.held():
        assert read_run(folder.path, "run").status == "running"


@pytest.mark.parametrize("value", [None, True, "1", float("nan"), float("inf"), 10**400, [], {}])
def test_what_is_no_number(value: Any) -> None:
    assert number(value) is None


def test_verdicts_are_read_as_they_grow_and_anew_when_resumed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=3, clients=4, malicious=1)
    log = VerdictLog(folder.path)
    log.update()
    assert len(log.rounds) == 12
    line = '{"round": 4, "client": 2, "verdict": "rejected", "step": "guard", "score": null, "reason": "<script>"}'
    with folder.verdicts.open("a") as file:
        file.write(line[:30])
    log.update()
    assert len(log.rounds) == 12
    with folder.verdicts.open("a") as file:
        file.write(line[30:] + '\nnonsense\n{"round": 4, "client": "x", "verdict": "accepted"}\n')
    log.update()
    assert (len(log.rounds), log.damaged) == (13, 2)
    assert list(log.notes)[log.reasons[-1]] == "guard: <script>"
    kept = folder.verdicts.read_text().splitlines()[:4]
    folder.verdicts.rename(tmp_path / "old")
    folder.verdicts.write_text("\n".join(kept) + "\n")
    log.update()
    assert (list(log.rounds), log.damaged) == ([1] * 4, 0)


def test_the_map_says_who_and_when(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2, clients=3, malicious=1)
    lines = [(1, 7, "accepted", 0.5), (1, 9, "filtered", 4.0), (3, 9, "failed", None)]
    verdicts = [
        {"round": when, "client": who, "verdict": kind, "step": "", "score": score} for when, who, kind, score in lines
    ]
    folder.verdicts.write_text("".join(json.dumps(one) + "\n" for one in verdicts))
    found = run_map(folder.path)
    assert (found["rounds"], found["clients"], found["malicious"]) == ([1, 3], [7, 9], [0])
    assert unpack(found["cells"], np.uint8, (2, 2)).tolist() == [[1, 0], [2, 4]]
    scores = unpack(found["scores"], np.float32, (2, 2))
    assert scores[0, 0] == 0.5 and scores[1, 0] == 4.0 and np.isnan([scores[0, 1], scores[1, 1]]).all()


def test_a_large_map_keeps_attackers_and_honest_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CELLS", 1000)
    folder = write_run(tmp_path / "run", rounds=10, clients=300, malicious=150)
    found = run_map(folder.path)
    assert (len(found["clients"]), found["total"]) == (100, 300)
    assert sum(one < 150 for one in found["clients"]) == 50


def test_an_attacker_counts_only_while_it_attacks() -> None:
    truth = Truth(frozenset({1}), start=2, stop=3)
    rounds = np.array([1, 2, 3, 4, 2])
    assert truth.attacks(np.array([1, 1, 1, 1, 0]), rounds).tolist() == [False, True, True, False, False]
    log = VerdictLog(Path())
    log.rounds, log.clients = array("q", rounds), array("q", [1, 1, 1, 1, 0])
    log.scores, log.thresholds = array("d", [0.0, 5.0, 5.0, 0.0, 1.0]), array("d", [2.0, 3.0, 3.0, 2.0, 1.0])
    log.codes = array("B", [1, 2, 2, 1, 1])
    found = distribution(log, truth)
    assert found
    assert found["threshold"] == {
        "rounds": [1, 2, 3, 4],
        "middle": [2.0, 2.0, 3.0, 2.0],
        "typical": 2.0,
        "keeps": "below",
    }
    assert [found["groups"][name]["replies"] for name in ("honest", "malicious")] == [3, 2]
    assert found["groups"]["malicious"]["middle"] == [5.0, 5.0]
    assert sum(found["groups"]["honest"]["shares"]) == pytest.approx(1)


def test_attackers_at_rest_are_honest_on_the_map(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=6, clients=2, malicious=1)
    folder.truth.write_text(json.dumps({"malicious": [0], "kind": "zero", "start": 2, "stop": 5, "period": 1}))
    attacked = unpack(run_map(folder.path)["attacks"], np.uint8, (2, 6))
    attack = Experiment.of({"attack.start": 2, "attack.stop": 5, "attack.period": 1}).attack
    assert attacked.tolist() == [[active(attack, number) for number in range(1, 7)], [0] * 6]
    assert attacked[0].tolist() == [0, 1, 0, 1, 0, 0]


def test_next_to_no_weight_has_a_colour_of_its_own_and_cuts_are_known(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=1, clients=3, malicious=0)
    said = [
        Verdict(0, "accepted", "rfa", weight=0.001, reason="weight 0.001 of 0.3"),
        Verdict(1, "filtered", "loss", -0.31, 0.02, reason="score −0.31 below the cut at 0.02"),
        Verdict(2, "accepted", "", 0.5, 0.02),
    ]
    folder.verdicts.write_text("".join(json.dumps(one.line(1)) + "\n" for one in said))
    found = run_map(folder.path)
    assert unpack(found["cells"], np.uint8, (3, 1)).flatten().tolist() == [5, 2, 1]
    assert np.isnan(unpack(found["thresholds"], np.float32, (3, 1))[0])
    assert unpack(found["thresholds"], np.float32, (3, 1))[1:].flatten().tolist() == pytest.approx([0.02] * 2)
    assert found["notes"] == ["", "rfa", "loss"], "numbers make every reason another"


def test_a_run_of_the_first_format_is_read_as_the_whole(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=3)
    lines = [{**line, "detection": line["detection"]["whole"]} for line in read_lines(folder.metrics)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = {"precision": 0.5, "recall": 0.25, "f1": 0.3, "honest_excluded": 0.1}
    write_json(folder.summary, {"final_accuracy": 0.5, "detection": figures})
    run = read_run(folder.path, "run")
    assert run.summary["detection"] == {"whole": figures}
    assert run.columns["whole.true_positive"] == [line["detection"]["true_positive"] for line in lines]
    assert "filter.true_positive" not in run.columns


def test_a_page_is_not_written_under_another_kinds_name(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=1)
    found = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--output", str(tmp_path / "x.pdf")])
    assert isinstance(found.exception, UserError) and "the page is HTML, so name it .html" in str(found.exception)
    assert not (tmp_path / "x.pdf").exists()


def test_before_the_truth_is_known_all_scores_are_in_one(tmp_path: Path) -> None:
    log = VerdictLog(write_run(tmp_path / "run", finished=False).path)
    log.update()
    found = client_map(log, None)
    assert found["malicious"] is None and list(found["distribution"]["groups"]) == ["all"]


def test_statistics_by_hand() -> None:
    assert mean_and_error([1.0, 3.0]) == (2.0, 1.0)
    assert mean_and_error([0.5]) == (0.5, None)
    # t = −1.8974 with 5.8824 degrees of freedom
    assert welch([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]) == pytest.approx(0.1075, abs=1e-4)
    assert welch([1], [2, 3]) is None and welch([1, 1], [2, 2]) is None
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return read_sweep(write_sweep(tmp_path_factory.mktemp("sweeps") / "sweep"))


def test_a_map_shows_the_worst_case_of_all_other_axes(sweep: Sweep) -> None:
    found = make_map(sweep, "accuracy", "attack.fraction", "strategy.name")
    one = cell(found, "0.3", "rfa")
    cases = [g for g in sweep.groups if (g.axes["attack.fraction"], g.axes["strategy.name"]) == ("0.3", "rfa")]
    assert one["mean"] == min(group.mean("accuracy") for group in cases)
    assert one["case"] == {"attack.kind": "label-flip", "task.alpha": "0.1"}
    assert one["seeds"] == 3 and one["error"] > 0


def test_the_best_defence_comes_with_a_test(sweep: Sweep) -> None:
    found = best_map(sweep, "accuracy", "attack.fraction", "task.alpha")
    assert len(found["cells"]) == 6
    far = cell(found, "0.5", "0.1")
    assert (far["best"], far["second"], far["significant"]) == ("rofsl", "rfa", True)
    assert all(one["corrected"] >= one["p"] for one in found["cells"])


def test_a_sweep_page_has_its_maps_curves_and_what_is_missing(sweep: Sweep) -> None:
    page = as_page(sweep)
    assert sweep.pairs()[:2] == [("attack.fraction", "strategy.name"), ("attack.fraction", "task.alpha")]
    assert [one["status"] for one in page["unfinished"]] == ["running"]
    assert len(page["table"]) == len(page["curves"]) == 36
    first = page["curves"][0]
    assert all(low <= mean <= high for low, mean, high in zip(first["low"], first["mean"], first["high"], strict=True))


def test_one_seed_gives_no_test_and_one_axis_no_map(tmp_path: Path) -> None:
    axes = {"strategy.name": ["fedavg", "rfa"], "attack.fraction": [0.1, 0.3], "task.alpha": [0.1, 1.0]}
    page = as_page(read_sweep(write_sweep(tmp_path / "a", seeds=1, axes=axes, unfinished=0)))
    assert {one["p"] for best in page["bests"] for one in best["cells"]} == {None}
    single = as_page(read_sweep(write_sweep(tmp_path / "b", seeds=1, axes={"strategy.name": ["rfa"]}, unfinished=0)))
    assert single["maps"] == single["bests"] == [] and len(single["table"]) == 1


def test_truth_is_written_as_in_the_sweeps_own_tables(tmp_path: Path) -> None:
    axes: dict[str, list[Any]] = {"strategy.name": ["rfa"], "model.dropout": [True, False]}
    sweep = read_sweep(write_sweep(tmp_path / "sweep", seeds=1, axes=axes, unfinished=0))
    assert sweep.axes["model.dropout"] == ["true", "false"]


def test_a_cell_outside_of_its_sweep_is_not_read(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", seeds=1, axes={"strategy.name": ["rfa"]}, unfinished=0)
    plan = json.loads((folder / "sweep.json").read_text())
    plan["cells"][0]["folder"] = "../elsewhere"
    write_run(tmp_path / "elsewhere")
    write_json(folder / "sweep.json", plan)
    found = read_sweep(folder)
    assert found.groups == [] and "outside" in found.problems[0]
    (folder / "sweep.json").write_text("[]")
    with pytest.raises(UserError, match=r"sweep\.json: cannot be read"):
        read_sweep(folder)


def test_the_page_carries_data_that_cannot_become_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<img src=x onerror=alert(1)>", rounds=2)
    with folder.verdicts.open("a") as file:
        hostile = Verdict(0, "rejected", "guard", reason="</script><script>alert(1)")
        file.write(json.dumps(hostile.line(2)) + "\n")
    page = file_page(report_data([folder.path], []), "<b>title</b>")
    ours = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert ours and "<" not in ours[1] and "alert(1)" in ours[1]
    assert json.loads(ours[1])["runs"][0]["name"] == folder.path.name
    assert "<b>title" not in page and "<img src=x" not in page


def test_the_page_asks_nobody_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    page = file_page(report_data([write_run(tmp_path / "run").path], []), "title")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy and "default-src &#39;none&#39;" in policy[1] and "connect-src &#39;none&#39;" in policy[1]
    assert "unsafe-eval" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy[1]
    assert not re.search(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', page.split("<script>")[0])


def test_no_name_of_the_scripts_is_taken_twice() -> None:
    """They are joined into one, in which the later of two functions would silently replace the earlier."""
    lines = [line for script in ASSETS.glob("*.js") for line in script.read_text().splitlines()]
    found = [re.match(r"(?:async )?(?:function|class|const|let) (\w+)", line) for line in lines]
    names = [one[1] for one in found if one]
    assert len(names) > 80 and len(names) == len(set(names))


def test_a_sweeps_page_leads_to_its_runs(tmp_path: Path) -> None:
    axes: dict[str, list[Any]] = {"strategy.name": ["rfa", "rofsl"]}
    sweep = write_sweep(tmp_path / "a sweep", seeds=2, axes=axes)
    for target, way in (
        ([], "cells/{}/report.html"),
        (["--output", str(tmp_path / "x.html")], "a%20sweep/cells/{}/report.html"),
    ):
        done = CliRunner().invoke(app, ["report", str(sweep), "--cells", *target])
        assert done.exit_code == 0
        page = (Path(target[1]) if target else sweep / "report.html").read_text()
        rows = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])["sweeps"][0]["table"]
        found = [(run["seed"], run["report"]) for row in rows for run in row["runs"]]
        ways = [(number % 2, way.format(f"{number:08x}")) for number in range(3)]
        assert found == [*ways, (1, None)]  # the last one has not finished
    assert (sweep / "cells" / "00000000" / "report.html").is_file()
    assert titles([sweep / "cells" / "00000001", tmp_path / "mine"]) == ["00000001", "mine"]


def test_cells_have_titles_as_long_as_those_tell_them_apart(tmp_path: Path) -> None:
    def write(folders: list[str]) -> list[Path]:
        plan = {"cells": [{"folder": one, "axes": {"attack": "none", "clip": 0.5}, "seed": 3} for one in folders]}
        (tmp_path / "sweep.json").write_text(json.dumps(plan))
        return [tmp_path / one for one in folders]

    assert titles(write(["x"])) == ["none, 0.5, seed 3"]
    assert titles(write(["x", "another"])) == ["x", "another"]
    (tmp_path / "sweep.json").write_text("[7]")
    assert titles([tmp_path / "x"]) == ["x"]


def test_the_command_writes_a_page_and_pictures(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / "runs" / name, robust=True, rounds=5) for name in "ab")
    axes: dict[str, list[Any]] = {"strategy.name": ["rfa", "rofsl"], "attack.fraction": [0.1, 0.3]}
    sweep = write_sweep(tmp_path / "sweep", seeds=2, axes=axes)
    done = CliRunner().invoke(app, ["report", "a", "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0 and (one.path / "report.html").is_file()
    page, pictures = tmp_path / "new" / "all.html", tmp_path / "png"
    sources = [str(tmp_path / "runs"), str(sweep)]
    done = CliRunner().invoke(app, ["report", *sources, "--output", str(page), "--pictures", str(pictures)])
    assert done.exit_code == 0 and page.is_file() and "pictures:" in done.stdout
    names = {path.name for path in pictures.iterdir()}
    assert {
        "accuracy.pdf",
        "accuracy.svg",
        "accuracy.png",
        "recall.png",
        "robust.png",
        "clients-a.png",
        "scores-b.png",
    } <= names
    assert {"table-accuracy-attack.fraction-strategy.name.png", "table-curves-0.3.png"} <= names
    assert json.loads(re.findall(r'id="data">(.*?)</script>', page.read_text())[0])["runs"][1]["name"] == two.path.name


def test_what_cannot_be_reported_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="nothing: no folder there"):
        sort_out(["nothing"], str(tmp_path))
    with pytest.raises(UserError, match="bare: neither a run folder"):
        sort_out(["bare"], str(tmp_path))
    write_run(tmp_path / "run", rounds=1)
    done = CliRunner().invoke(app, ["report", "run", "--out", str(tmp_path), "--output", "/proc/no/report.html"])
    assert isinstance(done.exception, UserError) and "--output" in str(done.exception)
    (tmp_path / "file").write_text("")
    elsewhere = ["--tensorboard", str(tmp_path / "file")]
    done = CliRunner().invoke(app, ["report", "run", "--out", str(tmp_path), *elsewhere])
    assert isinstance(done.exception, UserError) and "--tensorboard" in str(done.exception)


def test_names_are_as_long_as_it_takes() -> None:
    assert distinct_names([Path("/x/a/s0"), Path("/x/b/s0")]) == ["a/s0", "b/s0"]
    assert distinct_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert distinct_names([]) == []


def test_tensorboard_gets_every_measure_or_the_user_a_hint(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3, robust=True)
    done = CliRunner().invoke(app, ["report", "run", "--out", str(tmp_path), "--tensorboard", str(tmp_path / "events")])
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        assert isinstance(done.exception, UserError) and "pip install 'thistle-fl[tensorboard]'" in str(done.exception)
        return
    assert done.exit_code == 0, done.exception
    events = EventAccumulator(str(tmp_path / "events" / "run")).Reload()
    assert [one.step for one in events.Scalars("accuracy")] == [1, 2, 3]
    assert {"loss", "bytes_up", "whole.true_positive", "robust/pgd20"} <= set(events.Tags()["scalars"])


def test_tensorboard_gets_the_cells_of_a_sweep_too(tmp_path: Path) -> None:
    cells = [path.name for path in runs_below(write_sweep(tmp_path / "sweep"))]
    ask = ["report", "sweep", "--out", str(tmp_path), "--tensorboard", str(tmp_path / "events")]
    done = CliRunner().invoke(app, ask)
    assert cells
    if done.exit_code:
        assert "pip install 'thistle-fl[tensorboard]'" in str(done.exception)
    else:
        assert f"{len(cells)} runs" in done.output
        assert all(list((tmp_path / "events" / name).iterdir()) for name in cells)


def test_the_figures_of_the_last_evaluation_are_read_and_nonsense_is_not(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, rounds=2))
    read = read_run(folder.path, "mine").quality
    line = list(read_lines(folder.metrics))[-1]
    assert {name: read[name] for name in ("auc", "sensitivity", "confusion")} == {
        name: line[name] for name in ("auc", "sensitivity", "confusion")
    }
    line |= {"auc": "high", "specificity": ["x"], "confusion": [3], "site_scores": [{"client": "a"}, 4, {"client": 1}]}
    with folder.metrics.open("a") as file:
        file.write(json.dumps({**line, "round": 3}) + "\n")
    read = read_run(folder.path, "mine").quality
    assert (read["auc"], read["specificity"], read["confusion"]) == (None, [None], [[]])
    assert read["site_scores"] == [{"client": 1, "accuracy": None, "loss": None, "examples": None}]
