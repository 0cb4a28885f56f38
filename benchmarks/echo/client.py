"""Becomes `client/echo.py` of a staged app: the product's host, but its clients send back what they got."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from thistle.client import app as host
from thistle.client.work import Work
from thistle.protocol.cohort import ACTION
from thistle.protocol.training import TrainReply


def echo(work: Work) -> TrainReply:
    """All that the guard asks of a reply, and no work."""
    return TrainReply(work.arrays, num_examples=1, seconds=0.0, loss=0.0)


host.KINDS["honest"] = echo

app = ClientApp()  # its functions are of this module, so that a worker imports it


@app.query("ping")
def ping(message: Message, context: Context) -> Message:
    return host.ping(message, context)


@app.train(ACTION)
def train_cohort(message: Message, context: Context) -> Message:
    return host.train_cohort(message, context)
