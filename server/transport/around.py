"""A grid around another one: what every such grid hands on unchanged."""

from __future__ import annotations

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class GridAround(Grid):
    """Subclasses say how messages go; which run it is, the inner grid knows."""

    inner: Grid

    def set_run(self, run: object) -> None:
        self.inner.set_run(run)  # type: ignore[arg-type]

    @property
    def run(self) -> object:  # type: ignore[override]
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
