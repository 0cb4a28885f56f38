"""What a run's bits depend on besides its experiment: versions, the CPU, the app's own code."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from thistle import flower_compat
from thistle.experiments.plugins import APP, ROOMS

PACKAGES = ("thistle-fl", "flwr", "torch", "torchvision", "ray", "numpy", "safetensors")


def environment(hosts: list[dict[str, str]]) -> dict[str, object]:
    """For environment.json."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": _cpu(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.platform(),
        "app_sha256": app_hash(),
        "hosts": hosts,
    }


def app_hash() -> str:
    """A fingerprint of the code that decides a run's result, the same from a checkout, a wheel or a bundle."""
    digest = hashlib.sha256()
    for folder in (*(APP / room for room in ROOMS), Path(flower_compat.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder.parent).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
