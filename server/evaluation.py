"""How good the global model is: measured by the server on the task's test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from thistle.attacks.evasion.measure import Adversary, share, survivors
from thistle.attacks.evasion.table import parse_attacks
from thistle.attacks.registry import Evaluated, chosen
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import torch_rng
from thistle.protocol.layout import load_record
from thistle.server.client_tests import ClientTests
from thistle.server.quality import quality
from thistle.tasks.dataset import PIXELS, Bounds
from thistle.tasks.training import evaluate


@dataclass(frozen=True)
class Evaluation:
    """The test set, and a network to try models in."""

    experiment: Experiment
    network: nn.Module
    pixels: Tensor
    labels: Tensor
    classes: int
    bounds: Bounds = PIXELS
    """Of what the model sees."""
    client_tests: ClientTests | None = None
    """The honest clients' own splits; None: not known."""

    def is_due(self, number: int) -> bool:
        """Every `evaluate.every` rounds, and after the last one."""
        return number % self.experiment.evaluate.every == 0 or number == self.experiment.rounds

    def measure(self, arrays: ArrayRecord, notes: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Accuracy and loss, also by class and by client, all from one pass over the test set; what the poisoning
        attack wants measured, such as how often a backdoor's trigger works; under test-time attacks what is still
        right. `notes`: what simulated attackers wrote down last."""
        load_record(self.network, arrays)
        batch, attack = self.experiment.evaluate.batch_size, chosen(self.experiment.attack)
        logits, loss = evaluate(self.network, self.pixels, self.labels, batch)
        hits, labels = (logits.argmax(1) == self.labels).cpu().numpy(), self.labels.cpu().numpy()
        measured: dict[str, Any] = {
            "accuracy": int(hits.sum()) / len(hits),
            "loss": loss,
            "class_accuracy": class_accuracy(hits, labels, self.classes),
            **quality(logits, self.labels, self.classes),
        }
        if self.client_tests:
            measured["client_accuracy"] = self.client_tests.measure(hits)
        evaluated = Evaluated(self.network, self.pixels, self.labels, batch, self.experiment.seed, notes or {})
        measured |= attack.measure(evaluated)
        robust = self._robust()
        return {**measured, "robust": robust} if robust else measured

    def _robust(self) -> dict[str, float]:
        """Accuracy under each of `evaluate.attacks`, on the same `evaluate.attack-samples` images in every round."""
        settings, client, seed = self.experiment.evaluate, self.experiment.client, self.experiment.seed
        names = parse_attacks("evaluate.attacks", settings.attacks)
        if not names:
            return {}
        rows = sample(len(self.labels), settings.attack_samples, seed).to(self.labels.device)
        adversary = Adversary(client.epsilon, None, seed, settings.batch_size, self.bounds)
        pixels, labels = self.pixels[rows], self.labels[rows]
        return {name: share(survivors(self.network, pixels, labels, name, adversary)) for name in names}


def class_accuracy(right: np.ndarray, labels: np.ndarray, classes: int) -> list[float | None]:
    """One number per class, in the order of the logits; None: the test set has no image of it."""
    hits, images = np.bincount(labels[right], minlength=classes), np.bincount(labels, minlength=classes)
    return [int(hit) / int(count) if count else None for hit, count in zip(hits, images, strict=True)]


def sample(available: int, wanted: int, seed: int) -> torch.Tensor:
    """Which images are attacked: `wanted` of them drawn from the seed, in their order; 0, or too many: all."""
    if not 0 < wanted < available:
        return torch.arange(available)
    return torch.randperm(available, generator=torch_rng(seed, "attacked"))[:wanted].sort().values
