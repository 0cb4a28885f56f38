"""The files that a run leaves when it has ended: its model, its summary, the truth."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord
from safetensors.torch import save

from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, write_atomically, write_json
from thistle.protocol.layout import sha256, to_state
from thistle.server.recording.detection import UNKNOWN, Truth
from thistle.server.recording.recorder import Recorder
from thistle.server.stopping import in_rounds

logger = logging.getLogger("thistle")


def write_results(
    folder: RunFolder,
    experiment: Experiment,
    recorder: Recorder,
    truth: Truth | None,
    arrays: ArrayRecord,
    facts: Mapping[str, Any],
    ended: str,
) -> None:
    """`facts` about the task go into the model's file; `ended`: why the run is over."""
    state = to_state(arrays)
    about = {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}
    write_atomically(folder.model, save({name: tensor.contiguous() for name, tensor in state.items()}, about))
    summary = recorder.summary(experiment.evaluate.window, experiment.attack if truth else None)
    document = {"name": folder.path.name, **summary, "ended": ended, "model_sha256": sha256(state)}
    write_json(folder.summary, document)
    write_json(folder.truth, UNKNOWN if truth is None else truth.document())
    _warn(recorder)


def _warn(recorder: Recorder) -> None:
    """Of what the figures alone do not show."""
    if recorder.lost:
        last, count = recorder.lost[-1], f"{len(recorder.lost)} of {in_rounds(len(recorder.rounds))}"
        logger.warning("%s taught the model nothing; the last, round %d: %s", count, last["round"], last["kept"])
    if recorder.score and recorder.score.every_attacker_failed:
        failures = recorder.score.failed_attackers
        logger.warning("every attacker failed, %d times in total: nobody attacked (see verdicts.jsonl)", failures)
