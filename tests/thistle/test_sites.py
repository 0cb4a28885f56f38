"""Sites by name: from an administrator's word to verdicts, metrics, summary, report; and which sites to ask."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.federations import rounds, tiny
from tests.server.test_grid import EVERYBODY
from tests.server.test_remote import SlowGrid, deployed
from tests.thistle.test_cli import thistle
from thistle.commands.deploy.local import one_each
from thistle.deploy.members import Members
from thistle.deploy.metrics import HELP, page, samples, serving
from thistle.deploy.service import Service
from thistle.deploy.state import State, again
from thistle.deploy.submissions import find_going_on, folders_of, submitted, write_down
from thistle.engines.flower_programs import Flwr, free_port
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines, write_json
from thistle.protocol.verdict import Verdict
from thistle.report.page import report_data
from thistle.results.sites import findings
from thistle.running.cautions import cautions, few
from thistle.server.recording.sites import outcomes, tally
from thistle.server.transport.hosts import BINDINGS

UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
DASHBOARD = Path(__file__).resolve().parents[2] / "docker" / "grafana" / "thistle.json"
FLIPPER = Verdict(5, "filtered", "loss", -0.31, 0.02, reason="score −0.31 below the cut at 0.02", site="East Hospital")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A deployed run of three named nodes, one of them without a name."""
    home = tmp_path_factory.mktemp("sites")
    named = {"2": ("0-1", "North Clinic"), "3": ("2-3", "St. Mary's"), "4": ("4-5", "")}
    write_json(home / "bindings.json", {node: {"clients": c, "name": name} for node, (c, name) in named.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BINDINGS, str(home / "bindings.json"))
        experiment = tiny(home, **{**EVERYBODY, "rounds": 2, "evaluate.every": 1, "strategy.name": "multi-krum"})
        deployed(experiment, SlowGrid(experiment, {2: "", 3: "", 4: ""}))
    return RunFolder(home / "run")


def test_names_and_times_are_in_every_line(folder: RunFolder) -> None:
    verdicts = list(read_lines(folder.verdicts))
    names = {0: "North Clinic", 1: "North Clinic", 2: "St. Mary's", 3: "St. Mary's", 4: "node 4", 5: "node 4"}
    assert {line["client"]: line["site"] for line in verdicts} == names
    assert all(UTC.fullmatch(line["time"]) for line in [*verdicts, *rounds(folder)])
    assert {one for line in rounds(folder) for one in line["sites"]} == set(names.values())
    left_out = [line for line in verdicts if line["verdict"] == "filtered"]
    said = [re.fullmatch(r"not selected: score .+ above the cut at .+", line["reason"]) for line in left_out]
    assert len(left_out) == 2 and all(said)
    assert all(line["score"] > line["threshold"] for line in left_out)
    sites = read_json(folder.summary)["sites"]
    assert sites == tally(rounds(folder)) and {said["rounds"] for said in sites.values()} == {2}


def test_the_report_has_them_and_older_runs_do_without(folder: RunFolder) -> None:
    data = report_data([folder.path], [])
    (run,) = data["runs"]
    assert list(run["sites"]) == ["North Clinic", "St. Mary's", "node 4"]
    assert data["maps"][run["id"]]["sites"][2] == "St. Mary's"
    lines = [{key: value for key, value in line.items() if key not in ("time", "sites")} for line in rounds(folder)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (old,) = report_data([folder.path], [])["runs"]
    assert old["sites"] == {} and old["pointed_out"] == []


def test_damaged_sites_are_passed_over(folder: RunFolder) -> None:
    broken = [{"round": 1, "sites": {"a": {"filtered": "many", "reason": 3}, "b": 7}}, {"round": 2, "sites": [1]}]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in broken))
    (run,) = report_data([folder.path], [])["runs"]
    assert run["sites"]["a"]["left_out"] == 0 and run["pointed_out"] == []


def test_a_site_that_is_left_out_most_of_the_time_is_pointed_out_in_words() -> None:
    fine = [Verdict(0, "accepted", site="North"), Verdict(1, "failed", reason="timeout", site="South")]
    lines = [outcomes([*fine, FLIPPER])] * 2 + [outcomes([*fine, Verdict(5, "accepted", site="East Hospital")])]
    (silent, flipped) = sorted(findings({"sites": tally(lines)}), key=lambda one: one.site, reverse=True)
    assert flipped.site == "East Hospital"
    assert flipped.text.startswith("was left out in 2 of 3 rounds: its updates made the shared model worse on the data")
    assert "score −0.31 below the cut at 0.02" in flipped.text and "labels" in flipped.advice
    assert silent.text == "did not answer in 3 of 3 rounds (the last time: timeout)."
    half = tally([outcomes([FLIPPER]), outcomes([Verdict(5, "accepted", site="East Hospital")])])
    assert not list(findings({"sites": half}))


def experiment(**more: object) -> Experiment:
    keys = {"task.server-data": "rendered", "task.clients": 3, "client.per-round": 3}
    return Experiment.of({**keys, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "replies", "said"),
    [
        ({"strategy.name": "rofsl"}, 3, "strategy.theta = 0.5: of 3 sites, 1 is left out in every round, even if all"),
        ({"strategy.name": "rofsl", "strategy.theta": 0.7}, 3, "of 3 sites, 2 are left out"),
        ({"strategy.name": "rofsl", "strategy.theta": 0.3}, 3, "nobody is ever left out, attackers included"),
        ({"strategy.name": "krum"}, 5, "strategy.name = krum: of 5 sites, 4 are left out"),
        ({"strategy.name": "multi-krum"}, 4, "needs 5 updates per round, and 4 sites give 4"),
        ({"strategy.name": "multi-krum", "strategy.malicious": 0}, 5, "strategy.malicious = 0: of 5 sites, nobody is"),
        ({"strategy.name": "rofsl", "strategy.theta": "auto"}, 3, ""),
        ({"strategy.name": "evidence"}, 3, ""),
        ({"strategy.name": "fedavg"}, 3, ""),
    ],
)
def test_what_does_not_suit_so_few_is_said_before(settings: dict[str, object], replies: int, said: str) -> None:
    found = cautions(experiment(**settings), replies, "sites")
    assert len(found) == bool(said) and said in "".join(found)


def test_a_large_simulation_is_not_lectured() -> None:
    assert few(experiment(**{"strategy.name": "rofsl"}))
    assert not few(experiment(**{"strategy.name": "rofsl", "task.clients": 50, "client.per-round": 10}))


def a_server(folder: Path) -> State:
    state = State(folder / "server")
    state.create()
    return state


def test_runs_are_found_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THISTLE_STATE", str(tmp_path))
    state = a_server(tmp_path)
    for number, name in (("7", "mine"), ("8", "other"), ("9", "mine")):
        write_down(state, number, tmp_path / "elsewhere" / name)
    assert [one.run_id for one in submitted(state)] == ["7", "8", "9"]
    assert list(folders_of("mine"))[:2] == [state.runs / "mine", tmp_path / "elsewhere" / "mine"]
    statuses = {"7": "finished:failed", "8": "finished:completed", "9": "running", "10": "pending"}
    flwr = Flwr({})
    runs = [{"run-id": number, "status": status} for number, status in statuses.items()]
    monkeypatch.setattr(flwr, "call", lambda *_: {"runs": runs})
    assert find_going_on(state, flwr, "mine") == "9" and find_going_on(state, flwr, "10") == "10"
    with pytest.raises(UserError, match="other: this run has ended"):
        find_going_on(state, flwr, "other")
    with pytest.raises(UserError, match="nothing: no such run here; running: mine, 10"):
        find_going_on(state, flwr, "nothing")
    assert again(state, "stop", "mine") == "thistle deploy stop mine"
    assert again(State(tmp_path / "x y"), "stop", "mine").endswith(f"--state '{tmp_path}/x y'")


def test_a_report_by_name_of_what_the_server_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THISTLE_STATE", str(tmp_path))
    run = RunFolder(a_server(tmp_path).runs / "mine")
    run.path.mkdir(parents=True)
    run.save_experiment(Experiment.of({}))
    done = thistle("report", "mine", cwd=tmp_path)
    assert done.returncode == 0 and (run.path / "report.html").is_file(), done.stderr


def test_names_tell_nodes_apart(tmp_path: Path) -> None:
    members = Members(a_server(tmp_path))
    members.bind("1", "0-1", True, "North Clinic", "a")
    members.bind("2", "2-9", True, "South", "b")
    members.check_name("North Clinic", but="1")
    for name, reason in (("North Clinic", "another node has this name"), ("a\nb", "printable"), ("x" * 65, "1 to 64")):
        with pytest.raises(UserError, match=reason):
            members.check_name(name, but="2")
    assert members.replies(4, {"1", "2"}) == (4, 2) and members.replies(4, {"2"}) == (2, 1)
    assert one_each("--data", None, 2, ["", ""]) == ["", ""]
    with pytest.raises(UserError, match="--data: given 1 times for 2 nodes"):
        one_each("--data", ["npz:a"], 2, [])


def test_metrics_for_prometheus(tmp_path: Path) -> None:
    state = a_server(tmp_path)
    run = RunFolder(state.runs / "mine")
    run.path.mkdir(parents=True)
    line = {"round": 3, "time": "2026-03-01T09:30:00.250Z", "seconds": 1.5, "accuracy": 0.9, "bytes_up": 7}
    run.metrics.write_text(json.dumps({**line, **outcomes([FLIPPER, Verdict(0, "accepted", site='a"b')])}) + "\n")
    write_down(state, "7", run.path)
    service = Service("superlink", [], {}, tmp_path / "log", tmp_path, ready=True, starts=2)
    port = free_port()
    with serving(port, lambda: page(samples(state, [service]))) as address:
        text = urllib.request.urlopen(address).read().decode()
        with pytest.raises(UserError, match="choose another port"), serving(port, str):
            pass
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert found['thistle_process_starts_total{process="superlink"}'] == "2"
    assert found['thistle_run_last_round_timestamp_seconds{run="mine"}'] == "1772357400" or float(
        found['thistle_run_last_round_timestamp_seconds{run="mine"}']
    ) == pytest.approx(1772357400.25)
    assert found['thistle_site_rounds_left_out_total{run="mine",site="East Hospital"}'] == "1"
    assert found['thistle_site_replies_total{run="mine",site="a\\"b",verdict="accepted"}'] == "1"
    assert {name.partition("{")[0] for name in found} <= HELP.keys()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {name for one in panels for target in one["targets"] for name in re.findall(r"thistle_\w+", target["expr"])}
    assert asked and asked <= HELP.keys()
