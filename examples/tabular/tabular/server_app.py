"""The ServerApp: RoFSL with forty patients of the server's own, the accuracy after every round, the final model."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from tabular.task import accuracy, load_server_data, load_test_data, make_net
from thistle.strategies import RoFSL, ServerAlone

app = ServerApp()


def make_strategy(name: str, seed: int):
    """RoFSL, or one of two for contrast."""
    if name == "fedavg":
        return FedAvg()
    cls = {"rofsl": RoFSL, "server-alone": ServerAlone}[name]
    return cls(model=make_net(seed), server_data=load_server_data(seed), server_batch_size=16, seed=seed)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    seed = config["seed"]
    net = make_net(seed)

    def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(net, *load_test_data(seed))})

    result = make_strategy(config["strategy"], seed).start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), config["save-to"])
