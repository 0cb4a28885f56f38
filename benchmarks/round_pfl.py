"""pfl-research's own FedAvg on its simulated backend: one of WORKERS processes joined by torch.distributed (gloo).

A child of round.py in the peers' venv: `python benchmarks/round_pfl.py FOLDER plain|channels-last`. Its environment is
what torchrun gives its workers; without it, pfl runs in this one process. As in pfl's own CIFAR-10 benchmark, users'
images are tensors in memory and batches follow their order. Nothing is evaluated.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

sys.path[0:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "stock" / "train")]

from quickstart.task import Net  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.round_plan import BATCH, CLIENTS, EPOCHS, PER_ROUND, RATE, Gate, load_arrays  # noqa: E402

FOREVER = 10**9


def pfl(module: str) -> Any:
    """Imported by name: pfl is in the peers' venv only."""
    return importlib.import_module(f"pfl.{module}")


class Model(Net):  # type: ignore[misc]
    """The stock app's network with the two methods that pfl asks for."""

    def loss(self, pixels: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self(pixels), labels)

    def metrics(self, pixels: Tensor, labels: Tensor) -> dict[str, Any]:
        """pfl evaluates in the very first iteration, whatever its frequency."""
        self.eval()
        with torch.no_grad():
            loss = cross_entropy(self(pixels), labels, reduction="sum")
        return {"loss": pfl("metrics").Weighted(float(loss), len(labels))}


def main() -> None:
    layout = {"plain": torch.contiguous_format, "channels-last": torch.channels_last}[sys.argv[2]]
    pixels, labels, shares = load_arrays(Path(sys.argv[1]))
    torch.set_num_threads(1)
    gate = Gate()
    np.random.seed(0)  # the same on all ranks: they draw the same cohorts

    def user(client: int) -> Any:
        images = torch.from_numpy(pixels[shares[client]]).float().div_(255).contiguous(memory_format=layout)
        return pfl("data.pytorch").PyTorchTensorDataset((images, torch.from_numpy(labels[shares[client]])))

    network = Model().to(memory_format=layout)
    model = pfl("model.pytorch").PyTorchModel(
        network, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0)
    )
    sampler = pfl("data.sampling").get_user_sampler("random", list(range(CLIENTS)))
    users = pfl("data.federated_dataset").FederatedDataset(user, sampler)
    weighting = pfl("aggregate.weighting").WeightByDatapoints()
    backend = pfl("aggregate.simulate").SimulatedBackend(users, users, postprocessors=[weighting])
    pfl("algorithm.federated_averaging").FederatedAveraging().run(
        pfl("algorithm.base").NNAlgorithmParams(FOREVER, FOREVER, PER_ROUND, None),
        backend,
        model,
        pfl("hyperparam").NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=EPOCHS, local_learning_rate=RATE),
        callbacks=[_gated(gate)],
        send_metrics_to_platform=False,
    )


def _gated(gate: Gate) -> Any:
    metrics = pfl("metrics").Metrics

    class Gated(pfl("callback.base").TrainingProcessCallback):  # type: ignore[misc]
        """Between two central iterations: wait."""

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            gate.done()
            return not gate.opens(), metrics()

    return Gated()


if __name__ == "__main__":
    main()
