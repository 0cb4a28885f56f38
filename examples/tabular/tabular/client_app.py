"""The ClientApp: trains and evaluates on this node's patients. The mod makes some nodes hostile, for the experiment."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tabular.task import Net, accuracy, load_data
from tabular.task import train as train_fn
from thistle.client.mods import poison


def hostile_nodes(message: Message, context: Context, call_next):
    """Of ten nodes with hostile = 0.3: three send −5 times their update."""
    share, seed = context.run_config["hostile"], context.run_config["seed"]
    if not share:
        return call_next(message, context)
    return poison("sign-flip", strength=5.0, fraction=share, seed=seed)(message, context, call_next)


app = ClientApp(mods=[hostile_nodes])


def node_data(context: Context):
    """The loader of this node's patients."""
    node = context.node_config
    return load_data(node["partition-id"], node["num-partitions"], context.run_config["seed"])


def received(message: Message):
    """The model that came with the request."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(msg: Message, context: Context):
    model, loader = received(msg), node_data(context)
    loss = train_fn(model, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    x, y = node_data(context).dataset.tensors
    metrics = MetricRecord({"eval_acc": accuracy(received(msg), x, y), "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
