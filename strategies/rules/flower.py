"""Flower's own strategies, under the names `flwr-*`: their settings, and how each is made."""

from __future__ import annotations

from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import AboveZero, Natural, NonNegative, Trim
from thistle.protocol.training import BEFORE
from thistle.strategies.flower import sampling
from thistle.strategies.registry import Named, setting, strategy


class FromFlower(Named):
    """The settings of a strategy of Flower's."""

    def make(self, experiment: Experiment) -> Strategy:
        """The strategy, sampling as the experiment says."""
        raise NotImplementedError

    def check(self, experiment: Experiment) -> None:
        """Enough updates for its rule."""
        super().check(experiment)
        n, least = experiment.client.per_round, self.least_updates()
        if n < least:
            f = getattr(self, "malicious", 0)
            raise UserError(
                f"strategy.malicious = {f}: {self.name} needs at least {least} updates per round, but gets {n}"
            )


class FlowersMean(FromFlower):
    """One of Flower's that takes a mean."""

    def is_mean(self) -> bool:
        """As all that take one."""
        return True


@strategy("flwr-fedavg", "McMahan et al. 2017")
class FlwrFedAvg(FlowersMean):
    """Flower's FedAvg."""

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedAvg(**sampling(experiment))


@strategy("flwr-fedavgm", "Hsu et al. 2019")
class FlwrFedAvgM(FlowersMean):
    """Flower's FedAvg with server momentum 0.9."""

    server_lr: AboveZero = setting("the factor by which the aggregate is multiplied", default=1.0)

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedAvgM(**sampling(experiment), server_learning_rate=self.server_lr, server_momentum=0.9)


@strategy("flwr-fedprox", "Li et al. 2020")
class FlwrFedProx(FlowersMean):
    """Flower's FedProx: a proximal term in the client."""

    proximal_mu: NonNegative = setting("strength of the clients' proximal term", default=0.01)

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedProx(**sampling(experiment), proximal_mu=self.proximal_mu)


@strategy("flwr-fedadam", "Reddi et al. 2021")
class FlwrFedAdam(FlowersMean):
    """Flower's FedAdam."""

    server_lr: AboveZero = setting("the server's learning rate", default=0.01)

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedAdam(**sampling(experiment), eta=self.server_lr)


@strategy("flwr-fedyogi", "Reddi et al. 2021")
class FlwrFedYogi(FlowersMean):
    """Flower's FedYogi."""

    server_lr: AboveZero = setting("the server's learning rate", default=0.01)

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedYogi(**sampling(experiment), eta=self.server_lr)


@strategy("flwr-fedmedian", "Yin et al. 2018")
class FlwrFedMedian(FromFlower):
    """Flower's coordinate median."""

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedMedian(**sampling(experiment))


@strategy("flwr-fedtrimmedavg", "Yin et al. 2018")
class FlwrFedTrimmedAvg(FromFlower):
    """Flower's trimmed mean."""

    trim: Trim = setting("the share that is cut off at each end", default=0.2)

    def make(self, experiment: Experiment) -> Strategy:
        return flower.FedTrimmedAvg(**sampling(experiment), beta=self.trim)


class FlowersKrum(FromFlower):
    """One of Flower's that is told how many are malicious."""

    malicious: Natural

    def least_updates(self) -> int:
        """Krum's bound."""
        return 2 * self.malicious + 3

    def arguments(self, experiment: Experiment) -> dict[str, Any]:
        """With the number of malicious nodes."""
        return {**sampling(experiment), "num_malicious_nodes": self.malicious}


@strategy("flwr-krum", "Blanchard et al. 2017")
class FlwrKrum(FlowersKrum):
    """Flower's Krum."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)

    def make(self, experiment: Experiment) -> Strategy:
        return flower.Krum(**self.arguments(experiment))


@strategy("flwr-multikrum", "Blanchard et al. 2017")
class FlwrMultiKrum(FlowersKrum):
    """Flower's multi-Krum."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)

    def make(self, experiment: Experiment) -> Strategy:
        chosen = max(1, experiment.client.per_round - self.malicious)
        return flower.MultiKrum(**self.arguments(experiment), num_nodes_to_select=chosen)


@strategy("flwr-bulyan", "El Mhamdi et al. 2018")
class FlwrBulyan(FlowersKrum):
    """Flower's Bulyan."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)

    def least_updates(self) -> int:
        """Bulyan's bound."""
        return 4 * self.malicious + 3

    def make(self, experiment: Experiment) -> Strategy:
        return flower.Bulyan(**self.arguments(experiment))


@strategy("flwr-qfedavg", "Li et al. 2020 (q-FFL)")
class FlwrQFedAvg(FlowersMean):
    """Flower's q-FedAvg: clients with a high loss weigh more."""

    q: NonNegative = setting("how much more a high loss weighs", default=0.1)
    needs_losses = True

    def make(self, experiment: Experiment) -> Strategy:
        how: dict[str, Any] = {
            "client_learning_rate": experiment.client.lr,
            "q": self.q,
            "train_loss_key": BEFORE,
        }
        return flower.QFedAvg(**sampling(experiment), **how)
