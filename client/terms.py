"""By what terms a client trains: the experiment's, with what the server sends and what the node itself says.

The server sends the adversarial settings with every request of the strategy `calfat`, so that a client whose run
config was never resolved trains as the others do. A deployed node with `role = "calibrated"` may set its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from thistle.attacks.training.calibrations import CALIBRATIONS
from thistle.attacks.training.objectives import OBJECTIVES
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import TERMS, Client, Value
from thistle.protocol.training import TrainRequest

NODE_KEYS = ("objective", "calibration", "epsilon", "step", "steps")
"""What a calibrated node's config may say: the setting `client.` of the same name, for this node alone."""


def check_training(client: Client) -> None:
    """Refuse names that nothing has, and settings that would do nothing or contradict each other."""
    objective = OBJECTIVES.find(client.objective, "client.objective")
    useless = {
        "adversarial-ratio": objective.ratio == 0 and client.adversarial_ratio not in ("default", 0.0),
        "adversarial-clients": objective.ratio == 0 and client.adversarial_clients != "",
        "warmup": not objective.warms_up and client.warmup > 0,
    }
    for name, wrong in useless.items():
        if wrong:
            value = getattr(client, name.replace("-", "_"))
            raise UserError(f"client.{name} = {value}: has no meaning with client.objective = {client.objective}")
    _check_calibration(client)


def _check_calibration(client: Client) -> None:
    chosen = CALIBRATIONS.find(client.calibration, "client.calibration")
    if client.calibration_in != "both" and not chosen.in_examples:
        raise UserError(
            f"client.calibration-in = {client.calibration_in}: with client.calibration = {client.calibration} "
            "this choice does not exist; use both"
        )
    if client.logit_scale != 1 and not chosen.scales:
        scaling = " or ".join(name for name, one in CALIBRATIONS.items() if one.scales)
        raise UserError(
            f"client.logit-scale = {client.logit_scale:g}: belongs to client.calibration = {scaling}, "
            f"not {client.calibration}; use 1.0"
        )


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
            "fedrbn and robal change the model, so the whole federation must use them"
        )
    if local.client.plain:
        raise UserError("node config: role = calibrated: neither the experiment nor the node names an objective")
    return local
