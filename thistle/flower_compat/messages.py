"""Messages made and named outside of a process of Flower's.

`Message` asks a class of Flower's own which task it is made by, and refuses to be made where nobody has said; a
message's id is given by Flower's grids, through the attribute behind a property that cannot be set; and a message
that is to look as if it had come from elsewhere needs metadata of its own, which the public constructor does not take.
"""

from __future__ import annotations

import copy
from uuid import uuid4

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity


def identify() -> None:
    """Say who we are, as a Flower process would."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def name_message(message: Message) -> str:
    """Give it an id, as Flower's own grids do when they send it; returns the id."""
    message.metadata.__dict__["_message_id"] = name = uuid4().hex
    return name


def message_for(node: int, kind: str, like: Message, content: RecordDict) -> Message:
    """A message as this node would have got it, otherwise like the one that was really sent."""
    metadata = copy.copy(like.metadata)
    metadata.message_type = kind
    metadata.dst_node_id = node
    return Message(metadata=metadata, content=content)  # type: ignore[call-overload]
