"""FedSVD: the mean of low-rank updates."""

from __future__ import annotations

from typing import Literal

from thistle.strategies.options import Rank
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rules.fedavg import FedAvg


@strategy("fedsvd", "Grammenos et al. 2020")
class FedSVD(FedAvg):
    """The mean of updates cut to half of their rank, weighted by data size."""

    exchange: Literal["full", "factors"] = setting(
        "whether clients send their models, or the truncated singular factors of their updates", default="factors"
    )
    rank: Rank = setting("the part of each layer's full rank to which updates are cut, at the start", default=0.5)
