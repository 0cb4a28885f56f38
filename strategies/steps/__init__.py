"""The parts of a pipeline: each takes the round and what was made of it so far, and hands on its own result."""

from thistle.strategies.steps.aggregation import Aggregation, RoundAggregation
from thistle.strategies.steps.change import Clip, ServerRate
from thistle.strategies.steps.filters import AngleFilter, LossFilter, ZenoFilter
from thistle.strategies.steps.learning import ServerLearning
from thistle.strategies.steps.limits import AdaptiveClipping
from thistle.strategies.steps.mixing import Bucketing, NearestNeighbourMixing

__all__ = [
    "AdaptiveClipping",
    "Aggregation",
    "AngleFilter",
    "Bucketing",
    "Clip",
    "LossFilter",
    "NearestNeighbourMixing",
    "RoundAggregation",
    "ServerLearning",
    "ServerRate",
    "ZenoFilter",
]
