"""A node with images of its own: classes are matched by name with the federation's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from tests.federations import rounds, run, tiny
from thistle.client.app import app as client_app
from thistle.engines.inline import InlineGrid
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_lines
from thistle.tasks.sources import read_source


def own(folder: Path, names: list[str], side: int = 8) -> str:
    """A node's file: the digits called `names`, in that order."""
    digits = read_source("digits")
    chosen = [np.flatnonzero(digits.train.labels == int(name) % 10)[:20] for name in names]
    labels = np.repeat(np.arange(len(names)), 20)
    pixels = digits.train.pixels[np.concatenate(chosen)][:, :, :side, :side]
    np.savez(folder / "own.npz", x_train=pixels, y_train=labels, classes=np.array(names))
    return f"npz:{folder / 'own.npz'}"


class OwnDataGrid(InlineGrid):
    """The first host has data of its own."""

    def __init__(self, experiment: Experiment, source: str) -> None:
        super().__init__(client_app, experiment, experiment.runtime.workers)
        self.source = source

    def _answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != self.hosts[0]:
            return super()._answer(message)
        context = Context(1, 2, {"data": self.source, "role": "honest"}, RecordDict(), dict(self._run_config))
        return self.app(message, context)


def test_a_node_trains_on_its_own_images(tmp_path: Path) -> None:
    experiment = tiny(tmp_path, **{"client.max-examples": 60})
    folder = run(experiment, OwnDataGrid(experiment, own(tmp_path, ["7", "3", "0"])))
    assert all(line["accepted"] == 4 for line in rounds(folder))
    assert {verdict["verdict"] for verdict in read_lines(folder.verdicts)} == {"accepted"}


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    experiment = tiny(tmp_path)
    with pytest.raises(UserError, match="its images are 1×6×6, the federation's 1×8×8"):
        run(experiment, OwnDataGrid(experiment, own(tmp_path, ["3"], side=6)))


def test_a_class_that_the_federation_lacks_is_refused(tmp_path: Path) -> None:
    experiment = tiny(tmp_path)
    with pytest.raises(UserError, match="has classes that the task lacks: 13;"):
        run(experiment, OwnDataGrid(experiment, own(tmp_path, ["3", "13"])))
