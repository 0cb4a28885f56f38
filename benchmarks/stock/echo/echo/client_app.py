"""The ClientApp: the model that came goes back."""

from __future__ import annotations

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    arrays = msg.content.array_records["arrays"]
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)


@app.query()
def query(msg: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=msg)
