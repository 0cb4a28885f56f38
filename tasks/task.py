"""A task made ready: its data, who holds which part of it, and what the server holds itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.tasks.dataset import Bounds, Dataset, Images, Shape
from thistle.tasks.partition import Partition, make_partition, nothing
from thistle.tasks.serverdata import check_server_data, load_server_data
from thistle.tasks.sources import load_dataset
from thistle.tasks.sources.cache import Progress


@dataclass(frozen=True)
class Task:
    """What a federation learns from."""

    dataset: Dataset
    partition: Partition
    server_images: Images | None

    @property
    def shape(self) -> Shape:
        return self.dataset.shape

    @property
    def bounds(self) -> Bounds:
        return self.dataset.test.bounds

    @property
    def classes(self) -> int:
        return len(self.dataset.classes)

    @property
    def held_out(self) -> Images | None:
        """Its test set is the server's."""
        return None

    def client_images(self, client: int) -> Images:
        """What this client trains on."""
        return self.dataset.train.take(self.partition.indices(client))


def prepare_task(
    task: settings.Task,
    seed: int,
    server_data: bool,
    progress: Progress | None = None,
    *,
    scheme: str = "",
    shared: bool = True,
) -> Task:
    """Load, divide and check everything; raises UserError for what the user can fix.

    `server_data` false: nobody asks for it, so it is not made (what is held out of the test set stays held out).
    `scheme`: how the rows of a table become values, where others have agreed on that. `shared` false: clients may have
    data of their own, so there need not be anything to share out.
    """
    check_server_data(task)
    dataset = load_dataset(task, progress, scheme)
    if shared and not len(dataset.train):
        raise UserError(
            f"task.name = {task.name!r}: there are no training images or rows to share out; with a test set alone, "
            "only nodes with their own data can train (thistle deploy node --data)"
        )
    server_images = None
    if server_data or task.server_data.startswith("holdout"):
        server_images, dataset = load_server_data(task, dataset, seed)
    count = len(dataset.train)
    partition = (
        make_partition(task, dataset.train.labels, len(dataset.classes), seed) if count else nothing(task.clients)
    )
    return Task(dataset, partition, server_images)


def check_inputs(experiment: Experiment, task: Task) -> None:
    """Refuse settings that only images can have."""
    if experiment.client.augment and len(task.shape) != 3:
        sides = "×".join(map(str, task.shape))
        raise UserError(f"client.augment = true: crops and mirrors images; the task's inputs are {sides}: leave it out")


@lru_cache(maxsize=2)
def cached_task(task: settings.Task, seed: int) -> Task:
    """What a client needs of it, kept by a process that works on it again and again."""
    return prepare_task(task, seed, server_data=False)
