"""FedProx: clients are held back from drifting away from the model that they got."""

from __future__ import annotations

from thistle.experiments.settings import NonNegative
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rules.fedavg import FedAvg


@strategy("fedprox", "Li et al. 2020")
class FedProx(FedAvg):
    """FedAvg with a proximal term in the client."""

    proximal_mu: NonNegative = setting("strength of the clients' proximal term", default=0.01)
