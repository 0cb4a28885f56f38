"""The honest client: local SGD on its own images, nothing else. A complete ClientApp."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from thistle.client.work import Work

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that was sent, and send it back."""
    work = Work.of(message, context)
    model = work.model()
    pixels, labels = work.data()
    metrics = work.train(model, pixels, labels)
    return work.reply(message, model, len(labels), metrics)
