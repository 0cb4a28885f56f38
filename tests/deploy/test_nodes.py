"""What nodes bring along: large models, data of their own, adversarial training; and a server without room."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.deploy.secure import ATTACK, Secure, guest
from thistle.experiments.runfolder import read_json, read_lines

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
SIDE = 209
"""Of square images in colour whose `mlp` has 105 MB."""


def test_a_model_of_100_megabytes(federation: Secure, tmp_path: Path) -> None:
    """Through the gateway, whose limit for one request is 6 MB, in both directions."""
    rng, path = np.random.default_rng(0), tmp_path / "large.npz"
    images = rng.integers(0, 256, (16, SIDE, SIDE, 3), dtype=np.uint8)
    labels = np.arange(16) % 2
    np.savez(path, x_train=images[:12], y_train=labels[:12], x_test=images[12:], y_test=labels[12:])
    settings = {"rounds": 1, "task.name": f"npz:{path}", "client.per-round": 1, "strategy.name": "fedavg"}
    run = federation.submit("large", **settings)
    assert run.result() == 0, run.said()
    (line,) = read_lines(federation.run_folder("large").metrics)
    assert line["accepted"] == 1 and min(line["bytes_up"], line["bytes_down"]) > 100e6
    federation.check_nothing_is_corrupted("large")


def test_a_calibrated_node(federation: Secure) -> None:
    """It trains as a simulated client of the same experiment does."""
    more = {"rounds": 1, "task.clients": 8, "client.per-round": 8, "client.objective": "pgd", "client.steps": 2}
    with guest(federation, "calibrated", "6-7", "--role", "calibrated"):
        run = federation.submit("calibrated", 4, **more)
        assert run.result() == 0, run.said()
    assert not federation.check_nothing_is_corrupted("calibrated")


def test_a_node_with_data_and_terms_of_its_own(federation: Secure, tmp_path: Path) -> None:
    """Images in a folder of the node; in an experiment of plain training it trains adversarially, by its own terms."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:40], digits.target[:40], strict=True)):
        folder = tmp_path / "own" / "train" / f"{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(folder / f"{number}.png")
    own = ("--data", f"folder:{tmp_path / 'own'}", "--role", "calibrated", "--set", "objective=pgd")
    with guest(federation, "own", "6", *own, admit=("--own-data",)):
        run = federation.submit("own", 4, **{"rounds": 1, "task.clients": 7, "client.per-round": 7})
        assert run.result() == 0, run.said()
    assert not federation.lost("own")
    without = federation.simulated("own", set(), **ATTACK)
    assert federation.sha("own") != without, "its images are not the seventh share of the task"


def test_a_run_folder_without_room_is_reported_before_training(federation: Secure, tmp_path: Path) -> None:
    folder, server = tmp_path / "disk", f"{federation.server.process.pid}"
    folder.mkdir()
    inside = ["nsenter", "-t", server, "-m"]  # a host has mounts of its own
    if subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        full = federation.command("deploy", "submit", "digits-clean", "--out", str(folder), "--name", "full")
        assert full.returncode == 2 and "MiB are free" in full.stderr, full.stderr
        seen = Path(f"/proc/{server}/root{folder}") / "full"
        assert read_json(seen / "status.json")["status"] == "failed"
        assert not (seen / "metrics.jsonl").exists()
    finally:
        subprocess.run([*inside, "umount", "-l", str(folder)], check=True)
    nowhere = federation.command("deploy", "submit", "digits-clean", "--out", "/proc/nowhere")
    assert nowhere.returncode == 2 and "run.out: cannot write to" in nowhere.stderr, nowhere.stderr
