"""The ServerApp: FedAvg, and a line with the time after every round."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    stamps = Path(str(config["stamps"]))

    def stamp(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        with stamps.open("a", encoding="utf-8") as file:
            file.write(f'{{"round": {server_round}}}\n')
        return None

    FedAvg(fraction_train=float(config["fraction-train"]), fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["rounds"]),
        evaluate_fn=stamp,
    )
