"""Messages made and named outside of a process of Flower's.

`Message` asks a class of Flower's own which task it is made by, and refuses to be made where nobody has said; and a
message's id is given by Flower's grids, through the attribute behind a property that cannot be set.
"""

from __future__ import annotations

from uuid import uuid4

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity


def identify() -> None:
    """Say who we are, as a Flower process would."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def name_message(message: Message) -> str:
    """Give it an id, as Flower's own grids do when they send it; returns the id."""
    message.metadata.__dict__["_message_id"] = name = uuid4().hex
    return name
