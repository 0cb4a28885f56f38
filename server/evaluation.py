"""How good the global model is: measured by the server on the task's test set."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ArrayRecord
from torch import Tensor, nn

from attacks.poisoning.trigger import backdoor_success
from exchange.experiment import Experiment
from exchange.layout import load_record
from tasks.training import evaluate


@dataclass(frozen=True)
class Evaluation:
    """The test set, and a network to try models in."""

    experiment: Experiment
    network: nn.Module
    pixels: Tensor
    labels: Tensor

    def is_due(self, number: int) -> bool:
        """Every `evaluate.every` rounds, and after the last one."""
        return number % self.experiment.evaluate.every == 0 or number == self.experiment.rounds

    def measure(self, arrays: ArrayRecord) -> dict[str, float]:
        """Accuracy and loss; under a backdoor attack also how often the trigger works."""
        load_record(self.network, arrays)
        batch, attack = self.experiment.evaluate.batch_size, self.experiment.attack
        accuracy, loss = evaluate(self.network, self.pixels, self.labels, batch)
        measured = {"accuracy": accuracy, "loss": loss}
        if attack.kind == "backdoor":
            success = backdoor_success(self.network, self.pixels, self.labels, attack.target, batch)
            measured["attack_success"] = success
        return measured
