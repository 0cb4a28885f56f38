"""Becomes `client/echo.py` of a staged app: the product's host, but its clients send back what they got."""

from __future__ import annotations

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from thistle.client import app as host
from thistle.protocol.cohort import ACTION

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """All that the guard asks of a reply, and no work."""
    metrics = MetricRecord({"num-examples": 1, "loss": 0.0, "seconds": 0.0})
    return Message(
        RecordDict({"arrays": message.content.array_records["arrays"], "metrics": metrics}), reply_to=message
    )


host.APPS["honest"] = client

app = ClientApp()  # its functions are of this module, so that a worker imports it


@app.query("ping")
def ping(message: Message, context: Context) -> Message:
    return host.ping(message, context)


@app.train(ACTION)
def train_cohort(message: Message, context: Context) -> Message:
    return host.train_cohort(message, context)
