"""The honest client: local SGD on its own images, nothing else."""

from __future__ import annotations

from thistle.client.work import Work, client_app
from thistle.protocol.training import TrainReply


def train(work: Work) -> TrainReply:
    """Train the model that was sent, and send it back."""
    model = work.model()
    return work.reply(model, work.train(model, *work.data()))


app = client_app(train)
