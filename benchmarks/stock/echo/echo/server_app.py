"""The ServerApp: FedAvg over everybody, and a line after every round. The clock starts when Ray is up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    stamps = Path(str(config["stamps"]))

    def stamp(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        with stamps.open("a", encoding="utf-8") as file:
            file.write(f'{{"round": {server_round}}}\n')
        return None

    some = list(grid.get_node_ids())[:4]
    list(grid.send_and_receive([Message(RecordDict(), dst_node_id=node, message_type="query") for node in some]))
    FedAvg(fraction_train=1.0, fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(int(config["floats"]), np.float32)]),
        num_rounds=int(config["rounds"]),
        evaluate_fn=stamp,
    )
