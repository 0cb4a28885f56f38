"""`thistle watch`: only run folders, read only, whatever is asked for."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from tests.pages import finish, serving, write_run, write_sweep
from tests.thistle.test_cli import start
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.report import live
from thistle.report.live import Reader


class Events:
    """The server-sent events of a page, one after the other."""

    def __init__(self, address: str) -> None:
        self.answer = urllib.request.urlopen(f"{address}/events", timeout=90)

    def next(self) -> tuple[str, Any]:
        name = self.answer.readline().decode().removeprefix("event: ").strip()
        data = json.loads(self.answer.readline().decode().removeprefix("data: "))
        assert self.answer.readline() == b"\n"
        return name, data

    def changed(self) -> dict[str, Any]:
        """The next news of runs."""
        while True:
            name, data = self.next()
            if name == "changed":
                return data


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write_run(folder / "a", rounds=3)
    return folder


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with serving(runs) as where:
        yield where


def get(address: str, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """A request whose path goes out exactly as it is written."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def test_rounds_arrive_as_they_are_written(address: str, runs: Path) -> None:
    events = Events(address)
    name, order = events.next()
    assert name == "runs" and len(order) == 1
    (first,) = events.changed()["runs"]
    assert (first["name"], first["status"], first["columns"]["round"]) == ("a", "finished", [1, 2, 3])
    growing = write_run(runs / "b", rounds=2, finished=False)
    (second,) = events.changed()["runs"]
    with growing.metrics.open("a") as file:
        file.write('{"round": 3, "accuracy": 0.5}\n{"round": 4, "acc')
    while second["columns"]["round"] != [1, 2, 3]:
        (second,) = events.changed()["runs"]
    finish(growing, [{"accuracy": 0.5}], 1)
    while second["status"] != "finished":
        (second,) = events.changed()["runs"]


def test_the_map_of_a_run_grows_with_it(address: str, runs: Path) -> None:
    key = Events(address).next()[1][0]
    assert json.loads(get(address, f"/map/{key}").read())["rounds"] == [1, 2, 3]
    with (runs / "a" / "verdicts.jsonl").open("a") as file:
        file.write('{"round": 4, "client": 1, "verdict": "rejected", "step": "guard", "reason": "<script>"}\n')
    found = json.loads(get(address, f"/map/{key}").read())
    assert found["rounds"] == [1, 2, 3, 4] and "guard: <script>" in found["notes"]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/../../../../etc/passwd",
        "/%2e%2e/secret.txt",
        "/map/../../secret.txt",
        "/map/..%2f..%2fsecret.txt",
        "/map/%2e%2e%2fa",
        "/map/a",
        "/a/metrics.jsonl",
        "/map/..%00",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_other_address_leads_anywhere(address: str, runs: Path, path: str) -> None:
    (runs.parent / "secret.txt").write_text("secret")
    answer = get(address, path)
    assert answer.status == 404 and b"secret" not in answer.read()


def test_links_out_of_the_folder_show_nothing(address: str, runs: Path, tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside", rounds=9)
    (runs / "link").symlink_to(outside.path)
    (runs / "b").mkdir()
    (runs / "b" / "experiment.toml").write_text("rounds = 1\n")
    for name in ("metrics.jsonl", "verdicts.jsonl", "truth.json"):
        (runs / "b" / name).symlink_to(outside.path / name)
    reader = Reader([runs])
    reader.look()
    assert [one.folder.name for one in reader.runs.values()] == ["a", "b"]
    hidden = json.loads(list(reader.runs.values())[1].page)
    assert hidden["columns"] == {} and "leads out" in hidden["problems"][0]
    assert list(reader.runs.values())[1].map()["rounds"] == []


def test_it_is_read_only_and_says_so_to_browsers(address: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert get(address, "/", method).status == 405
    answer = get(address, "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_another_name_for_this_machine_is_refused(address: str) -> None:
    assert get(address, "/", Host="evil.example").status == 400
    assert get(address, "/", Host="localhost:1").status == 200


def test_nothing_in_the_folder_is_changed(address: str, runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    Events(address).changed()
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_a_folder_that_vanishes_and_one_that_is_empty(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    run = write_run(folder / "a", rounds=1)
    reader = Reader([folder])
    reader.look()
    run.path.rename(tmp_path / "away")
    reader.look()
    assert reader.runs == {}


def test_one_bad_look_is_told_and_does_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(folder: Path, name: str) -> None:
        raise ValueError("out of range")

    write_run(tmp_path / "runs" / "a", rounds=1)
    with serving(tmp_path / "runs") as where:
        assert len(Events(where).changed()["runs"]) == 1
        with monkeypatch.context() as broken:
            broken.setattr(live, "read_run", fail)
            write_run(tmp_path / "runs" / "b", rounds=1)
            deadline = time.monotonic() + 240
            while "out of range" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        shown = Events(where)
        names: set[str] = set()
        while "b" not in names:
            names |= {run["name"] for run in shown.changed()["runs"]}
    assert caplog.text.count("out of range") == 1


def test_a_sweep_is_read_again_when_a_cell_ends(tmp_path: Path) -> None:
    axes: dict[str, list[Any]] = {"strategy.name": ["rfa", "rofsl"], "attack.fraction": [0.1, 0.3]}
    folder = write_sweep(tmp_path / "sweep", seeds=1, axes=axes)
    reader = Reader([folder])
    reader.look()
    reader.look()
    assert (reader.sweep_version, len(json.loads(reader.sweeps)[0]["unfinished"])) == (1, 1)
    last = list(reader.runs.values())[-1].folder
    finish(write_run(tmp_path / "x", rounds=1), [{"accuracy": 0.5}], 1)
    for name in ("summary.json", "status.json"):
        (last / name).write_bytes((tmp_path / "x" / name).read_bytes())
    reader.look()
    assert json.loads(reader.sweeps)[0]["unfinished"] == []


def test_the_command_names_its_address_and_ends_when_told(runs: Path) -> None:
    with start("watch", str(runs), "--port", "0", cwd=runs, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        address = process.stdout.readline().split("/  (")[0]
        assert address.startswith("http://127.0.0.1:")
        assert get(address, "/page.js").status == 200
        assert Events(address).next()[0] == "runs"
        events = Events(address)  # a browser that is still listening
        assert events.next()[0] == "runs"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""


def test_it_may_be_started_before_there_is_a_run(tmp_path: Path) -> None:
    with start("watch", "--port", "0", cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().split("/  (")[0]
        events = Events(address)
        assert events.next()[0] == "runs"
        write_run(tmp_path / "runs" / "first", rounds=1)
        assert any("first" in str(events.next()) for _ in range(5))
        process.send_signal(signal.SIGINT)
        process.wait(30)


def test_other_machines_are_let_in_with_a_warning_only(runs: Path) -> None:
    with start("watch", str(runs), "--host", "0.0.0.0", "--port", "0", cwd=runs, text=True) as process:
        assert process.stderr
        assert "no password" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.wait(30)


def test_a_port_that_is_taken_is_a_user_error(address: str, runs: Path) -> None:
    port = address.rsplit(":", 1)[1]
    done = CliRunner().invoke(app, ["watch", str(runs), "--port", port])
    assert isinstance(done.exception, UserError) and f"--port {port}" in str(done.exception)
