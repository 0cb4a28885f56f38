"""What the server would learn without any client: the yardstick of all strategies with server data."""

from __future__ import annotations

from thistle.experiments.errors import UserError
from thistle.experiments.settings import NonNegative
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Step


@strategy("server-alone", "RoFSL")
class ServerAlone(Pipeline):
    """Learns on server data only: the yardstick."""

    gamma: NonNegative = setting("its learning rate in units of the clients'", default=0.5)
    mixable = False

    def steps(self) -> list[Step | None]:
        """Nothing but learning."""
        return [self.server_learning()]

    def check_settings(self) -> None:
        """Without a rate nothing would happen at all."""
        super().check_settings()
        if not self.gamma:
            raise UserError("strategy.gamma = 0.0: server-alone would never learn anything; use a rate above 0")
