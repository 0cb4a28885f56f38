"""The networks: a file in this folder, or an entry in one of them, is all that another one needs."""

from thistle.tasks.dataset import Shape
from thistle.tasks.models.build import build_model, check_model, predict
from thistle.tasks.models.registry import MODELS, Dropout

__all__ = ["MODELS", "Dropout", "Shape", "build_model", "check_model", "predict"]
