"""`flwr run .` by hand: the repository is a Flower app like any other."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import pytest
from flwr.cli.build import build_fab_from_disk

from tests import federations
from thistle.engines.flower_programs import free_port
from thistle.engines.keeper import MARK, sweep
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import ROOMS
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.server.recording.environment import app_hash

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
SETTINGS = {"rounds": 2, "task.clients": 6, "client.per-round": 3, "model.name": "mlp"}


class Link:
    """A SuperLink in simulation mode, as somebody would start it in a terminal."""

    def __init__(self, home: Path) -> None:
        self.port, self.session = free_port(), uuid4().hex
        self.environment = {
            **os.environ,
            MARK: self.session,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_ADDRESS": "local",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "priv"\n[superlink.priv]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.process = subprocess.Popen(
            [TOOLS / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(self.port)],
            cwd=home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        sweep(self.session)
        self.process.wait(timeout=90)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 240
        while not self._answers():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def flwr(self, *arguments: str) -> dict:
        done = subprocess.run(
            [TOOLS / "flwr", *arguments, "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    link = Link(tmp_path / "flwr")
    try:
        link.wait_until_ready()
        yield link
    finally:
        link.close()


def test_the_bundle_holds_the_rooms_and_nothing_else() -> None:
    bundle = build_fab_from_disk(ROOT)
    assert len(bundle) < 2 * 2**20  # of the ten that Flower allows
    with zipfile.ZipFile(BytesIO(bundle)) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        package = [name for name in archive.namelist() if name.startswith("thistle/")]
    assert tops - {"LICENSE", ".info"} == {*ROOMS, "pyproject.toml", "thistle", "flower_app.py"}
    compat = {path.name for path in (ROOT / "thistle" / "flower_compat").glob("*.py")}
    assert set(package) == {"thistle/__init__.py"} | {f"thistle/flower_compat/{name}" for name in compat}


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_flwr_run_by_hand(link: Link, tmp_path: Path) -> None:
    own = {**SETTINGS, "run.out": str(tmp_path / "runs"), "run.name": "hand"}
    pairs = " ".join(f"{key}={value!r}" for key, value in own.items())
    resources = "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=2"
    run = link.flwr("run", str(ROOT), "priv", "-c", pairs, "--federation-config", resources)["run-id"]
    status = ""
    while not status.startswith("finished"):
        time.sleep(0.5)
        status = link.flwr("ls", "priv", "--run-id", str(run))["runs"][0]["status"]
    assert status == "finished:completed"

    folder = RunFolder(tmp_path / "runs" / "hand")
    assert folder.get_status()["status"] == "finished"
    assert [line["round"] for line in federations.rounds(folder)] == [1, 2]
    assert read_json(folder.environment)["app_sha256"] == app_hash()
    inline = federations.run(Experiment.of({**own, "run.name": "inline", "runtime.workers": 1}))
    assert federations.model_sha(folder) == federations.model_sha(inline)
