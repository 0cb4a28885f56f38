"""What came back from one client of a round, as yet unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Error, Message, RecordDict

from thistle.flower_compat.error_codes import ErrorCode
from thistle.protocol.cohort import Record


@dataclass(frozen=True, slots=True)
class Reply:
    """Its records, or why there are none."""

    client: int
    group: str
    """Of the request that it answers: the round."""
    records: Mapping[str, Record] | None
    failure: str = ""

    @classmethod
    def to(cls, request: Message, found: Mapping[str, Record] | str) -> Reply:
        """To this request; a string is the failure."""
        client, group = request.metadata.dst_node_id, request.metadata.group_id
        return cls(client, group, None, found) if isinstance(found, str) else cls(client, group, found)

    def as_message(self, request: Message) -> Message:
        """As Flower's own grids give it."""
        if self.records is None:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, self.failure), reply_to=request)
        return Message(RecordDict(dict(self.records)), reply_to=request)
