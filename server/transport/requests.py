"""What a round's requests ask for, and how much they carry."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord, Message

from thistle.protocol.layout import record_bytes
from thistle.protocol.records import config_of
from thistle.protocol.training import asked_rank


def ranks_asked(messages: Sequence[Message]) -> dict[int, float]:
    """The clients that were asked for factors, and of which rank."""
    asked = {key: asked_rank(config_of(message)) for key, message in _distinct(messages).items()}
    ranks = ((message.metadata.dst_node_id, asked[id(message.content)]) for message in messages)
    return {client: rank for client, rank in ranks if rank is not None}


def array_bytes(messages: Sequence[Message]) -> int:
    """Of the model, and of whatever else of that kind goes to the clients."""
    sizes = {
        key: record_bytes(record for record in message.content.values() if isinstance(record, ArrayRecord))
        for key, message in _distinct(messages).items()
    }
    return sum(sizes[id(message.content)] for message in messages)


def _distinct(messages: Sequence[Message]) -> dict[int, Message]:
    """One message for each content: most clients of a round are sent the same."""
    return {id(message.content): message for message in messages}
