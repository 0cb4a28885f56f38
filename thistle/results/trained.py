"""Trained models: found by run or by file, and ready to use, `thistle.load("runs/x").predict(images)`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from thistle.commands.resume import find_run
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.running.prepare import make_experiment
from thistle.tasks.dataset import Shape
from thistle.tasks.models import build_model, predict
from thistle.tasks.serverdata import fit_pixels
from thistle.tasks.sources import load_dataset
from thistle.tasks.sources.depth import in_eight_bits
from thistle.tasks.sources.folder import read_picture
from thistle.tasks.sources.npz import to_pixels, to_values
from thistle.tasks.tables.read import Options, read_table
from thistle.tasks.tables.scheme import Scheme
from thistle.tasks.training import pick_device, to_inputs

BATCH = 256

Picture = str | Path | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Subject:
    """A model file, and the experiment that says what network and task it belongs to."""

    model: Path
    experiment: Experiment

    @property
    def home(self) -> Path:
        return self.model.parent


def find_subject(source: str, out: str, experiment: str = "") -> Subject:
    """The model that a path or a run's name means."""
    path = Path(source).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise UserError(f"{source}: no such file")
        if experiment:
            return Subject(path.resolve(), make_experiment(experiment, []))
        folder = RunFolder(path.resolve().parent)
        if not folder.experiment.is_file():
            raise UserError(f"{source}: no experiment.toml beside it; name its experiment: --experiment FILE.toml")
        return Subject(path.resolve(), folder.load_experiment())
    if experiment:
        raise UserError(f"--experiment {experiment}: a run folder has its own; leave it out")
    folder = find_run(source, out)
    if not folder.model.is_file():
        status = folder.get_status().get("status", "not begun")
        raise UserError(f"{folder.path}: the run is {status} and has no final model yet")
    return Subject(folder.model, folder.load_experiment())


def read_network(subject: Subject, shape: Shape, classes: int) -> nn.Module:
    """The experiment's network with the file's weights."""
    experiment = subject.experiment
    network = build_model(experiment.network, shape, classes, experiment.seed)
    try:
        state = load_file(subject.model)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{subject.model}: cannot be read as safetensors: {error}") from None
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    if {name: tuple(tensor.shape) for name, tensor in state.items()} != expected:
        raise UserError(
            f"{subject.model}: does not hold the network of model.name = {experiment.model.name} for "
            f"{experiment.task.name}"
        )
    network.load_state_dict(state)
    return network


@dataclass(frozen=True)
class Facts:
    """What belongs to a model besides its weights."""

    classes: tuple[str, ...]
    shape: Shape
    scheme: str = ""
    """How rows of a table become its inputs."""


def read_facts(subject: Subject) -> Facts:
    """From the file, or else from the task itself."""
    try:
        with safe_open(subject.model, framework="numpy") as file:
            about = file.metadata() or {}
        if "classes" in about and "shape" in about:
            scheme = json.loads(about.get("scheme", '""'))
            return Facts(tuple(json.loads(about["classes"])), tuple(json.loads(about["shape"])), scheme)
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{subject.model}: cannot be read as safetensors: {error}") from None
    dataset = load_dataset(subject.experiment.task)
    return Facts(dataset.classes, dataset.shape, dataset.scheme)


@dataclass(frozen=True)
class Prediction:
    """The class that the model gives an image."""

    label: str
    probability: float
    probabilities: Mapping[str, float]
    """Of every class, the likeliest first."""


class Trained:
    """A model with everything needed to use it."""

    def __init__(self, subject: Subject) -> None:
        self.experiment, self.file = subject.experiment, subject.model
        self.facts = read_facts(subject)
        self.classes, self.shape = self.facts.classes, self.facts.shape
        """The classes' names in the order of the logits; of an image: channels, height and width."""
        self.device = pick_device("auto")
        self.network = read_network(subject, self.shape, len(self.classes)).to(self.device).eval()

    def predict(self, images: Picture | Iterable[Picture]) -> list[Prediction]:
        """One prediction per image."""
        return [self._prediction(row) for row in self.probabilities(images)]

    def _prediction(self, row: np.ndarray) -> Prediction:
        order = np.argsort(-row, kind="stable")
        named = {self.classes[i]: float(row[i]) for i in order}
        return Prediction(self.classes[order[0]], float(row[order[0]]), named)

    @torch.inference_mode()
    def probabilities(self, images: Picture | Iterable[Picture]) -> np.ndarray:
        """n × classes, each row sums to 1.

        An image is a path, a PIL image or an array; a single array is a whole batch (n×h×w, n×h×w×c or n×c×h×w, uint8,
        uint16 or floats from 0 to 1). An image of any size and channels is fitted to what the model was trained
        on. Other inputs are an array, n×…, as the model sees them; a model of a table also takes the path of one.
        """
        inputs = self._inputs(images)
        parts = [np.zeros((0, len(self.classes)), dtype=np.float32)]
        for chunk in inputs.split(BATCH) if len(inputs) else ():
            parts.append(predict(self.network, chunk).softmax(1).float().cpu().numpy())
        return np.concatenate(parts)

    def _inputs(self, images: Picture | Iterable[Picture]) -> Tensor:
        if len(self.shape) == 3:
            fitted = [to_inputs(one[None], self.device) for one in self._pixels(images)]
            return torch.cat(fitted) if fitted else torch.zeros(0, *self.shape)
        if self.facts.scheme and isinstance(images, str | Path):
            options = replace(Options.of(self.experiment.task), ignore=frozenset())
            table = read_table(Path(images).expanduser(), options, labelled=False)
            return to_inputs(Scheme.read(self.facts.scheme).values(table), self.device)
        wanted = "n×" + "×".join(map(str, self.shape))
        if not isinstance(images, np.ndarray | Tensor) or tuple(images.shape[1:]) != self.shape:
            table_too = ", or the path of a table" if self.facts.scheme else ""
            raise UserError(f"the model takes an array of {wanted}{table_too}; got {_seen(images)}")
        return to_inputs(to_values("inputs", "the array", _array(images)), self.device)

    def _pixels(self, images: Picture | Iterable[Picture]) -> list[np.ndarray]:
        """c×h×w each: levels, or floats from 0 to 1."""
        if isinstance(images, np.ndarray | Tensor):
            found = list(to_pixels("images", "the array", _array(images)))
        elif isinstance(images, str | Path | Image.Image):
            found = [self._one(images)]
        else:
            found = [self._one(image) for image in images]
        return [fit_pixels(one, self.shape) for one in found]

    def _one(self, image: Picture) -> np.ndarray:
        if isinstance(image, str | Path):
            return read_picture(Path(image).expanduser(), self.shape[0], self.experiment.task.bits)
        if isinstance(image, Image.Image):
            image = np.asarray(in_eight_bits(image, "L" if self.shape[0] == 1 else "RGB"))
        pixels: np.ndarray = to_pixels("images", "an image", _array(image)[None])[0]
        return pixels


def _seen(given: object) -> str:
    shape = getattr(given, "shape", None)
    return type(given).__name__ if shape is None else "×".join(map(str, shape))


def _array(image: Any) -> np.ndarray:
    return image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)


def load_trained(run: str | Path, out: str = "runs") -> Trained:
    """The final model of a run, given by its folder or its name below `out`."""
    return Trained(find_subject(str(run), out))
