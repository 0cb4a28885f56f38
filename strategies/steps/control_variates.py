"""SCAFFOLD (Karimireddy et al. 2020): control variates that take the drift out of clients' steps.

The server keeps c and, for every client it has heard of, c_i (zero until then: lazily). It sends c − c_i, which the
client adds to its gradients, and computes c_i anew from the model that comes back: nothing is asked of the client
but that model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from thistle.protocol.layout import CONTROL
from thistle.strategies.rounds import Progress, Round

# In the memory: c as "control", and c_i as "control/<client>".


def control_records(memory: Mapping[str, np.ndarray], clients: Iterable[int]) -> dict[int, ArrayRecord]:
    """c − c_i for each of these clients; those without a c_i share one record. Empty before the first round."""
    whole = memory.get(CONTROL)
    if whole is None:
        return {}
    shared = ArrayRecord({CONTROL: Array(whole)})
    known = {client: memory.get(f"{CONTROL}/{client}") for client in clients}
    return {
        client: shared if own is None else ArrayRecord({CONTROL: Array(whole - own)}) for client, own in known.items()
    }


@dataclass(frozen=True)
class ControlVariates:
    """After an aggregation, option II, for the clients S that were kept, with a weight that matters:

        c_i⁺ = c_i − c + (x_t − x_i)/(K η),     c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i)

    with K = epochs · ⌈examples / batch⌉ from the capped number of examples, never a K that a client names.
    """

    clients: int
    """N; 0: as many as are connected."""
    epochs: int
    batch_size: int
    stage: ClassVar[str] = "control"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.examples is not None
        c = round.memory.get(CONTROL, np.zeros(progress.updates.shape[1], np.float32))
        steps = self.epochs * torch.ceil(round.examples / self.batch_size)
        notes: dict[str, np.ndarray] = {}
        change = np.zeros_like(c)
        for row in progress.mattered().nonzero().squeeze(1).tolist():
            name = f"{CONTROL}/{round.ids[row]}"
            drift = -progress.updates[row].numpy() / np.float32(float(steps[row]) * round.lr)
            moved = drift - c  # c_i⁺ − c_i
            notes[name] = round.memory.get(name, 0.0) + moved
            change += moved
        return progress.note(**notes, **{CONTROL: c + change / np.float32(self.clients or round.connected)})
