"""Free riders in disguise: they want the model without training for it, and send what looks like an update."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import ByMemory, Facts, Past, Sent
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative

FIRST = 1e-3
"""σ before anything is known of the federation's steps."""
SIGMA = "sigma"


@attack("free-rider", "Fraboni et al. 2021", knows="past models")
class FreeRider(ByMemory):
    """Repeats the federation's last step, with noise that fades.

    x_t − x_{t−1} + ν σ t^{−γ} ε with ε ~ N(0, I), each for itself: σ is the standard deviation of the first step that
    attackers saw, over its parameters, and t the round. `replay = false`: the noise alone.
    """

    strength: NonNegative = setting("ν, the noise in units of σ", default=1.0, declared=(1.0,))
    decay: NonNegative = setting("γ: how fast the noise fades", default=1.0)
    replay: bool = setting(
        "whether to send the federation's last step again with the noise, or only the noise", default=True
    )

    def __call__(self, own: Tensor, past: Past, facts: Facts, generator: torch.Generator) -> Sent:
        step = past.step
        notes = dict(past.notes)
        if step is not None and SIGMA not in notes:
            notes[SIGMA] = step.std(correction=0)
        sigma = float(notes.get(SIGMA, FIRST))
        noise = torch.randn(own.shape, generator=generator, dtype=own.dtype)
        update = self.strength * sigma * facts.number**-self.decay * noise
        return Sent(update if step is None or not self.replay else step + update, notes)
