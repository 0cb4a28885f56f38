"""A disk that fills up during a run: one sentence, and the run goes on from its checkpoint when there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.federations import model_sha
from tests.thistle.test_cli import thistle
from thistle.experiments.runfolder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["thistle", "run", "digits-clean", "--engine=inline", "--set=rounds=40", "--name=small", "--set=run.audit=on"]
OWN_MOUNTS = ["unshare", "--mount", "--map-root-user"]


@pytest.mark.timeout(900)
def test_a_disk_that_fills_up_costs_no_round(tmp_path: Path) -> None:
    if subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are refused here")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = [sys.executable, str(ROOT / "tests" / "thistle" / "full_disk.py"), str(disk)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    command = [*OWN_MOUNTS, *script, *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800, check=False)
    assert "codes 2 0 0" in done.stdout, done.stdout + done.stderr
    assert done.stderr.count("cannot write to") == 1 and "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Logging error" not in done.stderr

    undisturbed = thistle(*SMALL[1:], cwd=tmp_path)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert model_sha(RunFolder(tmp_path / "runs" / "small")) in done.stdout
