"""What a client trains on: its share of the experiment's task or, on a node that says so, the node's own images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Value
from thistle.protocol.training import TrainRequest
from thistle.tasks.dataset import Bounds, Images, Shape
from thistle.tasks.sources import map_classes, read_source
from thistle.tasks.task import cached_task

OWN = "data"
"""In a node's config: `folder:PATH` or `npz:PATH` on that node, instead of the experiment's task."""


class Share(Protocol):
    """Images for every client that this host runs."""

    @property
    def shape(self) -> Shape:
        """Of one input."""

    @property
    def bounds(self) -> Bounds:
        """Of what the model sees."""

    @property
    def classes(self) -> int:
        """How many classes the federation knows."""

    def client_images(self, client: int) -> Images:
        """What this client trains on."""


@dataclass(frozen=True)
class OwnImages:
    """A node's own data: all of it is its client's."""

    images: Images
    classes: int

    @property
    def shape(self) -> Shape:
        return self.images.shape

    @property
    def bounds(self) -> Bounds:
        return self.images.bounds

    def client_images(self, client: int) -> Images:
        return self.images


def find_share(experiment: Experiment, request: TrainRequest, node_config: Mapping[str, Value]) -> Share:
    """The data of this host; the server's message says what the classes are called, and how large images are."""
    if OWN in node_config:
        return _own(str(node_config[OWN]), request.classes, request.shape)
    return cached_task(experiment.task, experiment.seed)


@lru_cache(maxsize=2)
def _own(source: str, classes: tuple[str, ...], shape: tuple[int, ...]) -> OwnImages:
    """Classes are matched by name: one that the federation lacks is refused, one that the node lacks is fine."""
    dataset = map_classes(read_source(source, need_test=False, key=f"node config: {OWN}"), classes, source)
    if dataset.train.shape != shape:
        own, wanted = ("×".join(map(str, sides)) for sides in (dataset.train.shape, shape))
        raise UserError(f"node config: {OWN} = {source}: its images are {own}, the federation's {wanted}")
    return OwnImages(dataset.train, len(classes))
