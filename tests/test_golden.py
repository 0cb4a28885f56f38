"""The recorded experiments: whatever is rebuilt, the same settings give the same model, bit for bit.

tests/golden/models.json holds their `model_sha256`, and the processor and torch build that made them. Where the
mathematics changes on purpose, `python -m tests.test_golden` records them anew, and the commit says why.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deploy.federations import EXPERIMENT
from tests.federations import model_sha, run, tiny
from thistle.engines.ray import RayProcess
from thistle.experiments.plugins import pin
from thistle.experiments.settings import Runtime
from thistle.running.prepare import claim_folder, settle
from thistle.strategies.registry import strategies
from thistle.terminal.progress import RunProgress

HERE = Path(__file__).resolve().parent / "golden"
RECORD = HERE / "models.json"

SIGNS = {"attack.kind": "sign-flip", "attack.strength": 2.0, "attack.fraction": 0.25}
BATCH_NORM = {"model.name": "mine:net"}
KINDS = ["sign-flip", "label-flip", "gaussian", "zero", "scale", "backdoor", "alie", "ipm", "min-max", "min-sum"]
DEPLOYED = "a deployed federation"
"""tests/deploy/test_local.py carries it out on real nodes."""

EXPERIMENTS: dict[str, dict[str, Any]] = {
    **{
        name: {"strategy.name": name, "client.per-round": 8, **SIGNS}
        for name, cls in strategies().items()
        if cls.__module__.startswith("thistle.")
    },
    **{f"rofsl/{kind}": {"strategy.name": "rofsl", "attack.kind": kind, "attack.fraction": 0.3} for kind in KINDS},
    "rofsl/adaptive": {"strategy.name": "rofsl", "attack.kind": "adaptive", "attack.fraction": 0.3},
    "rofsl/mix": {"strategy.name": "rofsl", "attack.kind": "mix", "attack.fraction": 0.5},
    "rfa/mimic": {
        "strategy.name": "rfa",
        "attack.kind": "mimic",
        "attack.fraction": 0.3,
        "attack.omniscient": True,
    },
    "rofsl/angle": {"strategy.name": "rofsl", "strategy.filter": "angle", **SIGNS},
    "rofsl/auto": {"strategy.name": "rofsl", "strategy.theta": "auto", **SIGNS},
    "rofsl/reputation": {"strategy.name": "rofsl", "strategy.reputation": True, **SIGNS},
    "rofsl/dropout": {"strategy.name": "rofsl", "model.name": "cnn-emnist", "rounds": 2, **SIGNS},
    "rofsl/parts": {
        "strategy.name": "rofsl",
        "model.name": "mine:wide",
        "strategy.server-batch-size": 200,
        "rounds": 2,
        **SIGNS,
    },
    "dsvd/paper": {"strategy.name": "dsvd", "strategy.scale": "paper", "strategy.exchange": "full"},
    "dsvd/auto": {"strategy.name": "dsvd", "strategy.similarity-weights": "auto"},
    "calfat/rofsl": {"strategy.name": "calfat", "strategy.base": "rofsl", **SIGNS},
    "calfat/class-aware": {"strategy.name": "calfat", "strategy.class-aware": True},
    "calfat/trades": {"strategy.name": "calfat", "client.objective": "trades", "client.calibration": "none"},
    "arc": {"strategy.name": "fedavg", "strategy.pre": "arc", "client.per-round": 8, **SIGNS},
    "arc+nnm": {"strategy.name": "trimmed-mean", "strategy.pre": "arc+nnm", "client.per-round": 8, **SIGNS},
    **{
        f"{name}/weighted": {
            "strategy.name": name,
            "strategy.weighted": True,
            "task.partition": "dirichlet",
            "client.per-round": 8,
            **SIGNS,
        }
        for name in ("median", "trimmed-mean")
    },
    "norm-clipping/noise": {"strategy.name": "norm-clipping", "strategy.noise": 0.001, **SIGNS},
    "nnm": {"strategy.name": "median", "strategy.pre": "nnm", "client.per-round": 8, **SIGNS},
    "bucketing": {"strategy.name": "rfa", "strategy.pre": "bucketing", "client.per-round": 8, **SIGNS},
    "own model/fedavg": {**BATCH_NORM, "strategy.name": "fedavg", **SIGNS},
    "own model/rofsl": {**BATCH_NORM, "strategy.name": "rofsl", **SIGNS},
    "own model/flwr-fedadam": {**BATCH_NORM, "strategy.name": "flwr-fedadam", **SIGNS},
    DEPLOYED: {
        **EXPERIMENT,
        "rounds": 2,
        "runtime.workers": 2,
        "attack.kind": "sign-flip",
        "attack.strength": 3.0,
        "attack.clients": "3-5",
    },
    "own model/fedrbn": {**BATCH_NORM, "strategy.name": "calfat", "client.objective": "fedrbn"},
}
ON_RAY = ("rofsl/mix", "dsvd", "scaffold", "own model/rofsl")


def build() -> dict[str, str]:
    """What decides the bits of a computation, besides the settings."""
    found = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    facts = dict(line.split(":", 1) for line in found.partition("\n\n")[0].splitlines() if ":" in line)
    cpu = {key.strip(): value.strip() for key, value in facts.items()}
    model = "/".join(cpu.get(key, "?") for key in ("vendor_id", "cpu family", "model"))
    return {
        "processor": f"{platform.machine()} {model} {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
    }


def on_record(name: str) -> str | None:
    """The model's hash; None: nobody has recorded it with this processor and torch."""
    records = _records()
    here = next((record["models"] for record in records if record["build"] == build()), {})
    elsewhere = [record["models"] for record in records if record["build"] != build()]
    return None if name not in here and any(name in models for models in elsewhere) else str(here[name])


def _records() -> list[dict[str, Any]]:
    """One for each processor and torch."""
    return list(json.loads(RECORD.read_text(encoding="utf-8")))


def recorded(name: str) -> str:
    found = on_record(name)
    if found is None:
        pytest.skip(f"the models were recorded with another processor or torch than {build()}")
    return found


def model_of(name: str, out: Path) -> str:
    keys = pin(EXPERIMENTS[name], [HERE])
    return model_sha(run(tiny(out, **keys)))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_recorded_experiment_gives_the_same_model(name: str, tmp_path: Path) -> None:
    assert model_of(name, tmp_path) == recorded(name)


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_recorded_experiments_give_the_same_model_on_ray(tmp_path: Path) -> None:
    expected = {name: recorded(name) for name in ON_RAY}
    found = {}
    with RayProcess(Runtime(workers=2, device="cpu")) as process:
        for number, name in enumerate(ON_RAY):
            keys = tiny(tmp_path, f"run{number}", **pin(EXPERIMENTS[name], [HERE])).flat()
            experiment, folder = claim_folder(settle(keys, f"run{number}", str(tmp_path)), exact=True)
            with RunProgress(folder, experiment.rounds, quiet=True) as progress:
                process.carry_out(experiment, folder, progress)
            found[name] = model_sha(folder)
    assert found == expected


def main() -> None:
    """Record all of them, or those whose names are given."""
    if torch.get_num_threads() != 1:
        sys.exit("set OMP_NUM_THREADS=1 before: tests and runs have one thread, and LAPACK's bits depend on it")
    records = _records()
    record = next((known for known in records if known["build"] == build()), {"build": build(), "models": {}})
    if record not in records:
        records.append(record)
    for name in sys.argv[1:] or EXPERIMENTS:
        with tempfile.TemporaryDirectory() as folder:
            record["models"][name] = model_of(name, Path(folder))
    RECORD.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
