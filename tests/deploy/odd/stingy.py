"""A SuperNode that announces its replies to training and never uploads them; otherwise Flower's own."""

from __future__ import annotations

from typing import Any

from flwr.supernode import start_client_internal as module

real = module._push_messages


def push(*, state: Any, object_store: Any, send: Any, push_object: Any) -> None:
    """Pings are answered in full, everything else by its announcement alone."""
    training: list[bool] = []

    def announce(message: Any, *arguments: Any) -> Any:
        training.append(message.metadata.message_type.startswith("train"))
        return send(message, *arguments)

    def upload(*arguments: Any, **named: Any) -> None:
        if not training[-1]:
            push_object(*arguments, **named)

    real(state=state, object_store=object_store, send=announce, push_object=upload)


def act() -> None:
    """From now on, in this process."""
    module._push_messages = push
