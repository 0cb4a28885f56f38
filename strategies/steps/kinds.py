"""Two kinds of clients, told apart by what is known of each: who is honest, and how many attack, by EM.

Of client i there are, per feature f, the mean a_if of n_if observations. Within a client these scatter with variance
σ_f²; between the clients of one kind k ∈ {honest, malicious} their true values scatter with τ_kf²:

    a_if | k  ~  N(m_kf, τ_kf² + σ_f²/n_if)

so that a client seen once says little, and one seen ten times much. What ties the kinds to the truth is the first
feature, the agreement with the server's data in units of what accepted clients have at least: honest clients scatter
around a mean above `LEAST` and do not reach 0; malicious ones have at most `BELOW` of that mean. The other features
have no good direction of their own: they help where they tell the same two groups apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEPS = 40
BELOW = 0.3
"""Attackers' mean agreement is at most this part of the honest clients' …"""
SPREAD = 0.3
"""… whose own means scatter by at most this part of it."""
LEAST = 0.2
"""The honest mean agreement, at least, in units of what accepted clients had."""
FLOOR = 0.003
"""Of a variance between clients."""
DOUBT = 3.0
"""The most that a feature besides the first can say, as a log-odds."""
SHARE = (0.02, 0.85)
"""Within which the share of attackers is believed to lie."""
FEW, LONE, TWO = 10, 0.5, 1.5
"""Fewer than two malicious clients are strays and no kind; but of so few clients, one alone can ruin the model."""
CLEARLY = 0.15
"""An attack is one only where the mean agreement of the malicious kind is significantly below this part of honest's."""


@dataclass(frozen=True)
class Kinds:
    """What EM found."""

    honest: np.ndarray
    """N: the probability that each client is honest."""
    share: float
    """Of malicious clients among all that were seen."""
    significance: float
    """By how many standard errors the malicious kind's agreement is below `CLEARLY`; −inf: there is nobody in it."""


def tell_apart(means: np.ndarray, counts: np.ndarray, within: np.ndarray) -> Kinds:
    """N × F means and counts, F variances within a client. The first feature alone, then all, starting from that."""
    first = 1 / (1 + np.exp(-4 * (means[:, 0] - 0.5)))
    alone = _fit(means[:, :1], counts[:, :1], within[:1], first)
    return _fit(means, counts, within, alone.honest)


def _fit(means: np.ndarray, counts: np.ndarray, within: np.ndarray, honest: np.ndarray) -> Kinds:
    known = counts > 0
    noise = within / np.maximum(counts, 1e-9)
    spread = np.stack([np.full(means.shape[1], 0.05), np.full(means.shape[1], 0.2)])
    centre, share = np.zeros_like(spread), 0.5
    for _ in range(STEPS):
        for kind, member in enumerate((honest, 1 - honest)):
            mass = np.where(known, member[:, None], 0.0)
            centre[kind] = _average(means, mass / (spread[kind] + noise))
            if kind == 0:
                centre[0, 0] = max(centre[0, 0], LEAST)
            else:
                centre[1, 0] = min(centre[1, 0], BELOW * centre[0, 0])
            spread[kind] = np.maximum(FLOOR, _average((means - centre[kind]) ** 2 - noise, mass))
        spread[0, 0] = min(spread[0, 0], max(FLOOR, (SPREAD * centre[0, 0]) ** 2))
        odds = _log_odds(means, known, noise, centre, spread) + np.log((1 - share) / share)
        honest = 1 / (1 + np.exp(-np.clip(odds, -40, 40)))
        share = float(np.clip((1 - honest).mean(), *SHARE))
    return Kinds(honest, share, _significance(honest, noise[:, 0], centre[:, 0], spread[1, 0]))


def _average(values: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """By column; 0 if nothing has any mass, like unknown values."""
    total: np.ndarray = (mass * values).sum(axis=0) / np.maximum(mass.sum(axis=0), 1e-9)
    return total


def _log_odds(
    means: np.ndarray, known: np.ndarray, noise: np.ndarray, centre: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Of honest against malicious, summed over the features."""
    variance = spread[:, None, :] + noise
    density = -0.5 * np.log(variance) - 0.5 * (means - centre[:, None, :]) ** 2 / variance
    odds = density[0] - density[1]
    odds[:, 1:] = np.clip(odds[:, 1:], -DOUBT, DOUBT)
    better = means[:, 0] > centre[0, 0]
    odds[better, 0] = np.maximum(odds[better, 0], 0.0)  # to agree even more is nothing bad
    total: np.ndarray = np.where(known, odds, 0.0).sum(axis=1)
    return total


def _significance(honest: np.ndarray, noise: np.ndarray, centre: np.ndarray, spread: float) -> float:
    malicious = 1 - honest
    size = malicious.sum()
    if size < (LONE if len(honest) <= FEW else TWO):
        return -np.inf
    error = np.sqrt((malicious**2 * (spread + noise)).sum()) / size
    return float((CLEARLY * centre[0] - centre[1]) / max(error, 1e-6))
