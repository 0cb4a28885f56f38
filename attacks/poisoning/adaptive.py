"""For servers that check updates against their own gradient."""

from __future__ import annotations

from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Facts
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import Fraction
from thistle.strategies.aggregators.clipping import unit


@attack("adaptive", knows="colluders")
class Adaptive(ByColluders):
    """The most harmful update that a server with its own data accepts as descent.

    It guesses such a server's filter without knowing the rule or g0; `white-box` knows both, and is far
    stronger.

    A loss or an angle filter keeps what has a large enough inner product with the server's −g0. Colluders do not have
    g0, but honest clients descend too: d = μ/‖μ‖ stands for −g0/‖g0‖. Among the vectors of the panel's median norm r,
    so that no norm gives them away, with cos(v, d) ≥ m, this one goes farthest in the malicious direction p = −σ
    (−μ itself has nothing left once it may not point against d):

        v = r·(m d + √(1 − m²) q/‖q‖),      q = p − ⟨p, d⟩ d        (m at least cos(p, d))
    """

    strength: Fraction = setting("cosine with the honest mean that is kept", default=0.1, declared=(0.1, 0.5))

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        mean, norm = panel.mean(0), panel.norm(dim=1).median()
        d, p = unit(mean), unit(-panel.std(0, correction=0))
        m = max(self.strength, float(p @ d))
        return norm * (m * d + max(0.0, 1 - m**2) ** 0.5 * unit(p - (p @ d) * d))
