"""What a client trains on: its share of the experiment's task or, on a node that says so, the node's own data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Task, Value
from thistle.protocol.training import TrainRequest
from thistle.tasks.dataset import Bounds, Images, Shape
from thistle.tasks.sources import map_classes, read_source
from thistle.tasks.sources.registry import Wanted
from thistle.tasks.sources.table import is_table, summarise
from thistle.tasks.tables.agree import write_summary
from thistle.tasks.task import cached_task

OWN = "data"
"""In a node's config: `folder:PATH`, `csv:PATH`, … on that node, instead of the experiment's task."""


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

    @property
    def held_out(self) -> Images | None:
        """What this host keeps for testing; None: nothing, or not its own."""

    def client_images(self, client: int) -> Images:
        """What this client trains on."""


@dataclass(frozen=True)
class OwnImages:
    """A node's own data: all of it is its client's."""

    images: Images
    held_out: Images | None
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
        return _own(str(node_config[OWN]), experiment.task, request.classes, request.shape, request.scheme)
    return cached_task(experiment.task, experiment.seed)


@lru_cache(maxsize=2)
def _own(source: str, task: Task, classes: tuple[str, ...], shape: Shape, scheme: str) -> OwnImages:
    """Classes are matched by name: one that the federation lacks is refused, one that the node lacks is fine."""
    key = f"node config: {OWN}"
    if is_table(source) != bool(scheme):
        raise UserError(f"{key} = {source}: the federation's data are {'a table' if scheme else 'no table'}")
    dataset = read_source(source, need_test=False, key=key, options=task, scheme=scheme)
    dataset = map_classes(dataset, classes, source)
    train, test = (_in_shape(images, shape) for images in (dataset.train, dataset.test))
    if train.shape != shape:
        own, wanted = ("×".join(map(str, sides)) for sides in (train.shape, shape))
        what = "images" if len(shape) == 3 else "inputs"
        raise UserError(f"{key} = {source}: its {what} are {own}, the federation's {wanted}")
    return OwnImages(train, test if len(test) else None, len(classes))


def _in_shape(images: Images, shape: Shape) -> Images:
    """A series of c×t may have been read as a grey image, 1×c×t, or the other way round: the values are the same."""
    if images.shape == shape or tuple(side for side in images.shape if side > 1) != tuple(s for s in shape if s > 1):
        return images
    return replace(images, pixels=images.pixels.reshape(len(images), *shape))


def summary_of(experiment: Experiment, node_config: Mapping[str, Value]) -> str:
    """What this node reports about the columns of its table; empty: it has no table."""
    source = str(node_config.get(OWN, ""))
    return write_summary(summarise(Wanted(source, options=experiment.task))) if is_table(source) else ""
