"""The ClientApp: trains and evaluates the model on this node's data."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train_fn(model, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test_fn(model, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
