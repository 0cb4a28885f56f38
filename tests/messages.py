"""Messages outside of a Flower process: importing this says once which task we pretend to be."""

from __future__ import annotations

from flwr.app import Error, Message, RecordDict

from thistle.flower_compat.error_codes import ErrorCode
from thistle.flower_compat.messages import identify
from thistle.server.transport.reply import Reply

identify()

ROUND = "1"


def request(client: int, group_id: str = ROUND) -> Message:
    return Message(RecordDict(), dst_node_id=client, message_type="train", group_id=group_id)


def reply(client: int, content: RecordDict, group_id: str = ROUND) -> Message:
    return Message(content, reply_to=request(client, group_id))


def error_reply(client: int, reason: str | None, group_id: str = ROUND) -> Message:
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=request(client, group_id))


def unchecked(message: Message) -> Reply:
    """A message as the grid hands it to the guard."""
    client, group = message.metadata.src_node_id, message.metadata.group_id
    if message.has_error():
        return Reply(client, group, None, message.error.reason or "")
    return Reply(client, group, message.content)
