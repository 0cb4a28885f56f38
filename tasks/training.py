"""Local SGD and evaluation on cached tensors: clients and server learning share them.

No DataLoader: a client's images are one tensor, a batch is an index into it. One thread, and channels
last for images, because other thread counts and memory formats give other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thistle.experiments.errors import UserError
from thistle.tasks.dataset import Images
from thistle.tasks.models import predict
from thistle.tasks.threads import on_copies

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
CPU = torch.device("cpu")
Backward = Callable[[Loss, nn.Module, Tensor, Tensor], Tensor]
"""Leaves the gradient of a batch's loss with the parameters, and returns the loss."""
FULL = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
"""White."""


@dataclass(frozen=True)
class Recipe:
    """How to train. `proximal_mu` adds FedProx's μ/2‖x − x_t‖²."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    precision: str = "float32"


def pick_device(name: str) -> torch.device:
    """`auto`: CUDA where there is one, otherwise the CPU."""
    name = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
            raise RuntimeError("nothing that can train")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        there = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu: there is no CUDA device"
        raise UserError(f"runtime.device = {name!r}: not available here; use {there}") from None
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True  # the same seed should give the same model
    return device


def check_precision(name: str, device: torch.device) -> None:
    """Refuse bfloat16 where the hardware would only imitate it, slowly."""
    if name == "bf16" and not _has_bf16(device):
        where = "this GPU" if device.type == "cuda" else "this CPU (no avx512_bf16 or amx_bf16)"
        raise UserError(f"client.precision = bf16: {where} has no bfloat16; use float32")


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def to_tensors(images: Images, device: torch.device) -> tuple[Tensor, Tensor]:
    """What the model sees, and labels."""
    return to_inputs(images.pixels, device), torch.from_numpy(np.array(images.labels, dtype=np.int64)).to(device)


def to_inputs(values: np.ndarray, device: torch.device) -> Tensor:
    """The levels of images, 8 or 16 bits, in [0, 1]; floats as they are. What looks like images has its channels
    last."""
    levels = FULL.get(values.dtype)
    whole = values.astype(np.int32) if values.dtype == np.uint16 else np.array(values)
    inputs = torch.from_numpy(whole).to(device).float()
    return channels_last(inputs if levels is None else inputs.div_(levels))


def channels_last(inputs: Tensor) -> Tensor:
    """A batch of images in the memory format in which they are trained on; anything else as it is."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


def plain_loss(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy."""
    return cross_entropy(predict(model, pixels), labels)


def in_half(loss: Loss) -> Loss:
    """The same in bfloat16, as far as torch thinks it good; parameters and gradients stay as they are."""

    def halved(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, torch.bfloat16):
            return loss(model, pixels, labels)

    return halved


def at_once(loss: Loss, model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """The whole batch in one pass."""
    value = loss(model, pixels, labels)
    value.backward()  # type: ignore[no-untyped-call]
    return value.detach()


def batches(count: int, size: int, generator: torch.Generator, device: torch.device = CPU) -> Iterator[Tensor]:
    """One epoch: a random order, cut into batches (the last may be smaller); drawn here, used there."""
    return iter(torch.randperm(count, generator=generator).to(device).split(size))


class SGD:
    """torch.optim.SGD to the last bit; making one of those imports torch's compiler, which takes as long as torch."""

    def __init__(self, parameters: list[nn.Parameter], recipe: Recipe) -> None:
        self.parameters, self.recipe = parameters, recipe
        self.velocities: list[Tensor | None] = [None] * len(parameters)

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients, which are then gone."""
        recipe = self.recipe
        for place, parameter in enumerate(self.parameters):
            if (direction := parameter.grad) is None:
                continue
            parameter.grad = None
            if recipe.weight_decay:
                direction = direction.add(parameter, alpha=recipe.weight_decay)
            if recipe.momentum:
                velocity = self.velocities[place]
                direction = direction.clone() if velocity is None else velocity.mul_(recipe.momentum).add_(direction)
                self.velocities[place] = direction
            parameter.add_(direction, alpha=-recipe.lr)


def train(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    recipe: Recipe,
    generator: torch.Generator,
    loss: Loss = plain_loss,
    shift: Sequence[Tensor] | None = None,
    backward: Backward = at_once,
) -> float:
    """Plain SGD in place; returns the mean training loss. Dropout draws from torch's global generator.

    `shift` is added to every gradient, a tensor a parameter: SCAFFOLD's y ← y − η(g − c_i + c).
    """
    model.train()
    model.zero_grad(set_to_none=True)  # of a training that was cut off
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters] if recipe.proximal_mu else []
    optimiser = SGD(parameters, recipe)
    loss = in_half(loss) if recipe.precision == "bf16" else loss
    total = torch.zeros((), device=pixels.device)
    for _ in range(recipe.epochs):
        for batch in batches(len(labels), recipe.batch_size, generator, pixels.device):
            value = backward(loss, model, pixels[batch], labels[batch])
            for parameter, origin in zip(parameters, start, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - origin, alpha=recipe.proximal_mu)
            for parameter, extra in zip(parameters, shift or (), strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(extra)
            optimiser.step()
            total += value * len(batch)
    return float(total) / (recipe.epochs * len(labels))


@torch.inference_mode()
def evaluate(model: nn.Module, pixels: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, float]:
    """The logits, n × classes, and the mean cross-entropy; in eval mode."""
    model.eval()
    chunks = list(zip(pixels.split(batch_size), labels.split(batch_size), strict=True))
    found = on_copies(_logits_and_loss, model, pixels[:1], chunks, len(chunks))
    return torch.cat([logits for logits, _ in found]), sum(loss for _, loss in found) / len(labels)


@torch.inference_mode()
def _logits_and_loss(model: nn.Module, chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
    """Of one chunk: the loss is a sum."""
    pixels, labels = chunk
    logits = predict(model, pixels)
    return logits, float(cross_entropy(logits, labels, reduction="sum"))
