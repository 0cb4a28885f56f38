"""Federated learning with server learning, without defences: what RoFSL started from."""

from __future__ import annotations

from thistle.experiments.settings import AboveZero, NonNegative
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rules.fedavg import FedAvg


@strategy("fsl", "RoFSL's FSL")
class FSL(FedAvg):
    """The mean, twice as far, and server learning."""

    weighted: bool = setting("whether clients weigh by their number of examples", default=False)
    server_lr: AboveZero = setting("the factor by which the aggregate is multiplied", default=2.0)
    gamma: NonNegative = setting("server learning: its learning rate in units of the clients'", default=0.5)
