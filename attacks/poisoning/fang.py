"""Attacks that aim at one aggregation rule: against the direction in which the honest mean moves each parameter."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Facts
from thistle.attacks.registry import attack

PAPER = "Fang et al. 2020"
NEAR, FAR = 3.0, 4.0
"""How many standard deviations away the trimmed mean's attackers go."""
SMALLEST = 1e-5
"""Where Krum's attackers give up."""


@attack("fang-trim", PAPER, knows="colluders")
class FangTrim(ByColluders):
    """Against the trimmed mean and the median: each parameter 3 to 4 σ beyond μ, against its direction.

    With s = sign(μ): uniform in [μ − 4σ, μ − 3σ] where s = 1, in [μ + 3σ, μ + 4σ] elsewhere. That is the paper's
    attacker of partial knowledge; each colluder draws for itself.
    """

    def send(self, panel: Tensor, facts: Facts, generator: torch.Generator) -> Tensor:
        """Every colluder draws for itself."""
        mean, deviation = panel.mean(0), panel.std(0, correction=0)
        away = NEAR + (FAR - NEAR) * torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
        return mean - torch.where(mean > 0, 1.0, -1.0) * away * deviation


@attack("fang-krum", PAPER, knows="colluders")
class FangKrum(ByColluders):
    """Against Krum: −λ sign(μ), with the largest λ that Krum still chooses.

    λ starts at the paper's bound and is halved until Krum, over the panel and f copies, chooses a copy:

        λ ≤ min_i Σ_{l ∈ Γ_i} ‖u_i − u_l‖ / ((k − 1) √d) + max_i ‖u_i‖ / √d

    Γ_i are the n − f − 2 nearest of the panel's k updates (all of them, where there are no more).
    """

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        direction = panel.mean(0).sign()
        size = _start(panel, facts)
        while size > SMALLEST and not _krum_chooses_a_copy(panel, direction, size, facts.f):
            size /= 2
        return -size * direction


def _start(panel: Tensor, facts: Facts) -> float:
    rows = panel.double()
    nearest = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").sort(1).values[:, 1:]
    kept = max(1, min(facts.n - facts.f - 2, len(rows) - 1))
    root = rows.shape[1] ** 0.5
    among = float(nearest[:, :kept].sum(1).min()) / (max(1, len(rows) - 1) * root) if len(rows) > 1 else 0.0
    return among + float(rows.norm(dim=1).max()) / root


def _krum_chooses_a_copy(panel: Tensor, direction: Tensor, size: float, f: int) -> bool:
    """Krum's scores of the panel and of f copies of −size·direction, from k distances to the copy."""
    rows = panel.double()
    own = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    away = (rows + size * direction.double()).square().sum(1)
    kept = max(1, len(rows) - 2)
    """n − f − 2 neighbours, n = k + f."""
    copies = torch.cat([away.new_zeros(f - 1), away]).sort().values[:kept].sum()
    others = torch.cat([own.fill_diagonal_(torch.inf), away[:, None].expand(-1, f)], 1).sort(1).values[:, :kept].sum(1)
    return bool(copies < others.min())
