"""A small Flower app as its users write them: no Thistle in it. Its nodes share scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Change = Callable[[RecordDict], RecordDict]


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


@cache
def digits() -> tuple[Tensor, Tensor]:
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(bunch.data, dtype=torch.float32)[order] / 16, torch.tensor(bunch.target)[order]


def share(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """A node's part of the first 1200 digits; the others are for testing."""
    x, y = digits()
    return x[:1200][partition::partitions], y[:1200][partition::partitions]


def accuracy(arrays: ArrayRecord, make: Callable[[], nn.Module] = plain) -> float:
    model = make()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = digits()
    with torch.no_grad():
        return float((model.eval()(x[1200:]).argmax(1) == y[1200:]).float().mean())


def initial(make: Callable[[], nn.Module] = plain) -> ArrayRecord:
    return ArrayRecord(make().state_dict())


def make_app(
    make: Callable[[], nn.Module] = plain,
    *,
    arrays: str = "arrays",
    weight: str = "num-examples",
    mods: list[Mod] | None = None,
    train_reply: Change = lambda content: content,
    evaluate_reply: Change = lambda content: content,
) -> ClientApp:
    """The two functions `*_reply` change what is sent: a node that is broken or hostile."""
    app = ClientApp(mods=mods)

    def model_of(message: Message) -> nn.Module:
        model = make()
        model.load_state_dict(message.content.array_records[arrays].to_torch_state_dict())
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = model_of(message)
        x, y = share(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), weight: len(y)})
        content = RecordDict({arrays: ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(train_reply(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = model_of(message).eval()
        x, y = share(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
        with torch.no_grad():
            right = float((model(x).argmax(1) == y).float().mean())
        return Message(
            evaluate_reply(RecordDict({"metrics": MetricRecord({"eval_acc": right, weight: len(y)})})), reply_to=message
        )

    return app
