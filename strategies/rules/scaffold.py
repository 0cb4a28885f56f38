"""SCAFFOLD: control variates take the drift out of clients' steps (thistle.strategies.steps.control_variates)."""

from __future__ import annotations

from thistle.strategies.registry import setting, strategy
from thistle.strategies.rules.fedavg import FedAvg


@strategy("scaffold", "Karimireddy et al. 2020")
class Scaffold(FedAvg):
    """The mean; control variates against client drift."""

    weighted: bool = setting("whether clients weigh by their number of examples", default=False)
    control_variates: bool = setting(
        "SCAFFOLD's control variates; the clients' SGD must have no momentum", default=True
    )
