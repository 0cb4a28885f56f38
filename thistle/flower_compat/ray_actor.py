"""A Ray worker that runs a ClientApp, as Flower's own does, without all of Flower's server in its process.

Flower's comes from `flwr.simulation`, with which a web server and a database are imported: 0.7 s of each worker's
2.5 s of CPU time until its first message.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException


class ClientAppActor:
    """One process, one message at a time; it imports the app before the first."""

    def __init__(self, client: str) -> None:
        load(client)

    def run(self, app: Any, message: Message, cid: str, context: Context) -> tuple[str, Message, Context]:
        """As Flower's: `app` makes the ClientApp, `cid` is returned."""
        try:
            return cid, app()(message=message, context=context), context
        except Exception as error:
            raise ClientAppException(str(error)) from error

    def terminate(self) -> None:
        """End this process."""
        import ray

        ray.actor.exit_actor()


def load(client: str) -> ClientApp:
    """The ClientApp of this module."""
    app: ClientApp = import_module(client).app
    return app
