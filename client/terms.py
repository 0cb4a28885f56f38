"""By what terms a client trains: the experiment's, with what the server sends and what the node itself says.

The server sends the adversarial settings with every request of the strategy `calfat`, so that a client whose run
config was never resolved trains as the others do. A deployed node with `role = "calibrated"` may set its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment, check_training
from thistle.experiments.settings import TERMS, Value
from thistle.protocol.training import TrainRequest

NODE_KEYS = ("objective", "calibration", "epsilon", "step", "steps")
"""What a calibrated node's config may say: the setting `client.` of the same name, for this node alone."""


def local_terms(experiment: Experiment, request: TrainRequest, node_config: Mapping[str, Value]) -> Experiment:
    """The experiment as this client carries it out."""
    sent = tuple((key, value) for key, value in request.terms if key in TERMS)
    if sent:
        experiment = _changed(experiment, sent)
    return node_terms(experiment, node_config) if node_config.get("role") == "calibrated" else experiment


@lru_cache(maxsize=8)
def _changed(experiment: Experiment, sent: tuple[tuple[str, Value], ...]) -> Experiment:
    return Experiment.of({**experiment.flat(), **dict(sent)})


def node_terms(experiment: Experiment, node_config: Mapping[str, Value]) -> Experiment:
    """With what a calibrated node's own config says; refuses what does not fit the federation's model."""
    own = {f"client.{key}": node_config[key] for key in NODE_KEYS if key in node_config}
    try:
        local = Experiment.of({**experiment.flat(), **own})
        check_training(local.client)
    except UserError as error:
        raise UserError(f"node config: {error}") from None
    if local.network != experiment.network:
        raise UserError(
            f"node config: objective = {local.client.objective}, calibration = {local.client.calibration}: "
            "fedrbn and robal change the model, so the whole federation must train by them"
        )
    if local.client.plain:
        raise UserError("node config: role = calibrated: neither the experiment nor the node names an objective")
    return local
