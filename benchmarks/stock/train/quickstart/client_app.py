"""The ClientApp: a new model for every message, as the quickstart has it."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on this client's images."""
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    config = context.run_config
    lr = float(msg.content.config_records["config"]["lr"])  # type: ignore[arg-type]
    loader = load_data(str(config["data"]), int(context.node_config["partition-id"]), int(config["batch-size"]))
    loss = train_fn(model, loader, int(config["local-epochs"]), lr, device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})  # type: ignore[arg-type]
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)
