"""A site's own test of a model: accuracy and loss on its held-out data."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import RecordDict

from thistle.client.work import Work, believable
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Value
from thistle.protocol.sites import SiteScore
from thistle.tasks.training import evaluate, to_tensors


def score_of(
    content: RecordDict, client: int, experiment: Experiment, node_config: Mapping[str, Value]
) -> RecordDict | str:
    """The numbers, or why there are none."""
    work = Work.of(content, client, experiment, node_config)
    held = work.share.held_out
    if held is None:
        return "this host holds nothing out"
    values, labels = to_tensors(held, work.device)
    logits, loss = evaluate(work.model(), values, labels, experiment.evaluate.batch_size)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    return SiteScore(accuracy, believable(loss), len(labels)).records()
