"""A run's final model as a file that other programs run; what was written is read and run before it is believed."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from thistle.engines.flower_programs import EngineError
from thistle.experiments.errors import UserError
from thistle.experiments.extras import require
from thistle.experiments.runfolder import write_atomically
from thistle.results.card import write_card
from thistle.results.trained import Trained, find_subject
from thistle.tasks.models import predict

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}
SAMPLES, CLOSE = 200, 1e-4
"""Inputs on which the export is compared, and how far a probability may be off: other programs add in another order."""

Runner = Callable[[np.ndarray], np.ndarray]
"""The exported model: inputs n×…, float32, to probabilities n×classes."""


@dataclass(frozen=True)
class Exported:
    """What was made, and how it was checked."""

    model: Path
    card: Path
    checked: str


class Probabilities(nn.Module):
    """The network with its softmax, as other programs want it: inputs in, probabilities out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """n×classes; each row sums to 1."""
        return cast(Tensor, self.network(inputs)).softmax(1)


def export_run(run: str, form: str, folder: Path | None, out: str = "runs") -> Exported:
    """Write the model and its card; EngineError where what was written does not say what the model says."""
    subject = find_subject(run, out)
    if form == "onnx":
        require("onnx", "onnxscript", "onnxruntime")
    model = Trained(subject)
    target = folder or subject.home / "export"
    try:
        target.mkdir(parents=True, exist_ok=True)
        file = target / f"model{SUFFIXES[form]}"
        unfinished = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
        try:
            runner = WRITERS[form](model, unfinished)
            checked = compare(model, runner)
            unfinished.chmod(0o644)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
        card = target / "MODEL_CARD.md"
        write_atomically(card, write_card(subject, model.classes, model.shape, file, checked).encode())
    except OSError as error:
        raise UserError(f"--output {target}: cannot be written: {error.strerror or error}") from None
    return Exported(file, card, checked)


def compare(model: Trained, runner: Runner) -> str:
    """Run the export beside the model, on inputs as it may see; says how they agreed."""
    inputs, where = _inputs(model)
    with torch.inference_mode():
        wanted = predict(model.network, torch.from_numpy(inputs).to(model.device)).softmax(1).cpu().numpy()
    found = np.concatenate([runner(inputs[:1]), runner(inputs[1:])])  # one alone, and many
    apart = float(np.abs(found - wanted).max())
    if found.shape != wanted.shape or not apart <= CLOSE:
        raise EngineError(f"the exported model's probabilities differ from the model's by up to {apart:.2g}: not kept")
    return f"the exported model gave the same probabilities for {len(inputs)} {where}, at most {apart:.1g} apart"


def _inputs(model: Trained) -> tuple[np.ndarray, str]:
    """Test images where the task's data are here, else random numbers."""
    from thistle.tasks.sources import load_dataset

    with suppress(UserError, OSError):
        test = load_dataset(model.experiment.task).test
        if test.shape == model.shape and len(test) > 1:
            return test.pixels[:SAMPLES].astype(np.float32) / 255, "test images"
    return np.random.default_rng(0).random((SAMPLES, *model.shape), dtype=np.float32), "random inputs"


def _example(model: Trained) -> tuple[nn.Module, Tensor]:
    network = Probabilities(model.network.to("cpu", memory_format=torch.contiguous_format)).eval()  # type: ignore[call-overload]
    return network, torch.zeros(2, *model.shape)


def _onnx(model: Trained, file: Path) -> Runner:
    import onnxruntime

    network, example = _example(model)
    batch = torch.export.Dim("batch")
    with _quiet():
        torch.onnx.export(
            network,
            (example,),
            file,
            input_names=["inputs"],
            output_names=["probabilities"],
            dynamic_shapes=({0: batch},),
            external_data=False,
            verbose=False,
        )
        _about_onnx(file, model)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda inputs: np.asarray(session.run(None, {"inputs": inputs})[0])


def _about_onnx(file: Path, model: Trained) -> None:
    """Classes and shape travel with the model."""
    import onnx

    document = onnx.load(file)
    onnx.helper.set_model_props(document, _about(model))
    onnx.checker.check_model(document)
    onnx.save(document, file)


def _torchscript(model: Trained, file: Path) -> Runner:
    network, example = _example(model)
    with _quiet(), torch.no_grad():
        traced = torch.jit.trace(network, example)
        torch.jit.save(traced, file, _extra_files={"about.json": json.dumps(_about(model))})
        loaded = torch.jit.load(file)

    @torch.inference_mode()
    def run(inputs: np.ndarray) -> np.ndarray:
        return np.asarray(loaded(torch.from_numpy(inputs)).numpy())

    return run


def _safetensors(model: Trained, file: Path) -> Runner:
    state = {name: tensor.contiguous() for name, tensor in model.network.state_dict().items()}
    save_file(state, file, _about(model))
    other = Trained(find_subject(str(model.file), "")).network
    other.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in state.items()})
    other.load_state_dict(load_file(file))

    @torch.inference_mode()
    def run(inputs: np.ndarray) -> np.ndarray:
        return np.asarray(predict(other, torch.from_numpy(inputs)).softmax(1).cpu().numpy())

    return run


WRITERS: dict[str, Callable[[Trained, Path], Runner]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "safetensors": _safetensors,
}


def _about(model: Trained) -> dict[str, str]:
    """As in the run folder's model."""
    return {"classes": json.dumps(model.classes, ensure_ascii=False), "shape": json.dumps(model.shape)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters tell of their progress, and torch of what it will replace some day."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
