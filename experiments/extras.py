"""Packages that only some commands need, and how the user is told what to install."""

from __future__ import annotations

import importlib.util

from thistle.experiments.errors import UserError

EXTRAS = {
    "ray": "simulation",
    "psutil": "simulation",
    "pyarrow": "parquet",
    "cryptography": "deploy",
    "grpc": "deploy",
    "grpc_health": "deploy",
    "bokeh": "report",
    "fastapi": "report",
    "jinja2": "report",
    "matplotlib": "report",
    "scipy": "report",
    "uvicorn": "report",
    "sklearn": "vision",
    "torchvision": "vision",
    "dp_accounting": "dp",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "pyautoattack": "autoattack",
    "tensorboard": "tensorboard",
}
"""Modules, and the extra of pyproject.toml that has each."""


def require(*modules: str) -> None:
    """Refuse to go on without these, before anything is started."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise hint(module)


def hint(module: str) -> UserError:
    """One line that says what to install."""
    return UserError(f"{module} is not installed, and this needs it: pip install 'thistle-fl[{EXTRAS[module]}]'")


def explain(error: ModuleNotFoundError) -> UserError | None:
    """The same for an import that failed; nothing, where no extra would help."""
    module = (error.name or "").partition(".")[0]
    return hint(module) if module in EXTRAS else None
