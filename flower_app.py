"""What `flwr run .` loads from a checkout: thistle.server.app:app and thistle.client.app:app, one after the other.

Flower looks for both apps in two threads, and one that finds `thistle` half imported takes its rooms, which lie beside
it, for missing. It loads an attribute of this module under a lock, so that neither thread sees half of `thistle`.
(A staged app and the wheel have the rooms inside `thistle`, and do without.)
"""

from importlib import import_module

__all__ = ["client", "server"]  # noqa: F822  # Flower reads the names here


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(name)
    return import_module(f"thistle.{name}.app").app
