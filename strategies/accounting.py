"""The privacy spent: ε at δ after a number of rounds, by Google's dp-accounting (also what Flower's extra `dp` is).

Whose data one client's are is what is protected: all of a client's examples together. A noise multiplier is the noise's
standard deviation in units of the bound S to which each client's update is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.extras import require
from thistle.experiments.settings import Client, Value
from thistle.protocol.training import REPORT_CLASSES
from thistle.strategies.registry import Named


def fixed(noise: float, clients: int, per_round: int, rounds: int, delta: float) -> float:
    """A fixed number of clients, drawn without replacement. One client's data are replaced by others.

    The sum of the clipped updates then moves by up to 2S, so that the noise counts half. Subsampled Rényi DP (Wang et
    al. 2019); where everybody takes part, exact. It is never more than without sampling.
    """
    everybody = gaussian(noise / 2, rounds, delta)
    if per_round == clients:
        return everybody
    from dp_accounting.rdp import compute_epsilon

    orders, spending = _renyi(noise / 2, clients, per_round)
    return min(everybody, float(compute_epsilon(orders, rounds * spending, delta)[0]))


@lru_cache(maxsize=8)
def _renyi(noise: float, clients: int, per_round: int) -> tuple[np.ndarray, np.ndarray]:
    """Of one round, at many orders: a tenth of a second."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(SampledWithoutReplacementDpEvent(clients, per_round, GaussianDpEvent(noise)))
    return np.asarray(accountant.orders), np.asarray(accountant.rdp)


def poisson(noise: float, chance: float, rounds: int, delta: float) -> float:
    """Every client takes part independently with this probability. One client's data are added or taken away.

    Privacy loss distributions (Koskela et al. 2020; Google's connect-the-dots): tight.
    """
    require("dp_accounting")
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(chance, GaussianDpEvent(noise)), rounds)
    return float(accountant.get_epsilon(delta))


def gaussian(noise: float, rounds: int, delta: float) -> float:
    """Noise of this many sensitivities in each of these rounds, exactly (Balle and Wang 2018)."""
    require("dp_accounting")
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / math.sqrt(rounds), delta))


@lru_cache(maxsize=1024)
def spent(noise: float, sampling: str, clients: int, per_round: int, rounds: int, delta: float) -> float:
    """By the sampling's name; infinite without noise."""
    if not noise:
        return math.inf
    if sampling == "poisson":
        return poisson(noise, per_round / clients, rounds, delta)
    return fixed(noise, clients, per_round, rounds, delta)


def local(client: Client, rounds: int) -> dict[str, float]:
    """For metrics.jsonl: what a client that took part in every round has spent by its own noise, and will have."""
    if not client.local_noise:
        return {}
    now, after = (gaussian(client.local_noise / 2, count, client.local_delta) for count in (rounds, rounds + 1))
    return {"privacy.local-epsilon": now, "privacy.local-next": after, "privacy.local-delta": client.local_delta}


def check_local(named: Named, experiment: Experiment) -> None:
    """Refuse noise at the clients where it would be missing, or where clients would say more than their update."""
    client = experiment.client
    if not client.local_noise:
        return
    if not client.local_bound:
        raise UserError(f"client.local-noise = {client.local_noise:g}: noise needs clipping; set client.local-bound")
    terms: Mapping[str, Value] = getattr(named, "terms", dict)()
    if REPORT_CLASSES in terms or named.needs_losses or getattr(named, "report_losses", False):
        raise UserError(
            f"client.local-noise = {client.local_noise:g}: {experiment.strategy.name} asks clients for numbers that "
            "no noise covers; choose a strategy that uses only the updates"
        )
    spending = local(client, 1)["privacy.local-epsilon"]
    if 0 < experiment.stop.epsilon < spending:
        raise UserError(
            f"stop.epsilon = {experiment.stop.epsilon:g}: the first round already takes {spending:.3g} of each client; "
            "raise it, or client.local-noise"
        )
