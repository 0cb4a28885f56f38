"""What must be equal on all machines of a federation."""

from __future__ import annotations

from importlib.metadata import version

PACKAGES = ("flwr", "thistle-fl", "torch")


def versions() -> dict[str, str]:
    """As they are installed here."""
    return {name: version(name) for name in PACKAGES}
