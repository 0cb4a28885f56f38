"""`thistle evaluate`: what a trained model is worth against adversarial examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thistle.commands.options import Out
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_json
from thistle.terminal.screen import attacking, decoding, results, table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thistle.results.trained import Subject

PAPERS = "natural,fgsm,bim,cw,pgd20"
FEATURES = 1000
"""Images at most in the picture of features: t-SNE takes a minute for more."""


def evaluate(
    source: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="A run folder or a run's name, or a .safetensors file.")
    ],
    attacks: Annotated[str, typer.Option(help="natural, fgsm, bim, cw, pgd20 (any pgdK), aa: separated by commas.")] = (
        PAPERS
    ),
    samples: Annotated[int, typer.Option(min=0, help="Test images to attack; 0: all.")] = 0,
    epsilon: Annotated[
        float | None, typer.Option(help="How far a pixel may move, of 1; default: the run's client.epsilon.")
    ] = None,
    step: Annotated[float | None, typer.Option(help="The attacks' step; default: ε/4.")] = None,
    experiment: Annotated[
        str,
        typer.Option(metavar="PRESET|FILE.toml", help="For a MODEL that is in no run folder: what it was trained by."),
    ] = "",
    out: Out = "runs",
    pictures: Annotated[bool, typer.Option(help="Draw accuracy by class, and the features.")] = True,
) -> None:
    """Attack a trained model and write what it withstands into robustness.json beside it."""
    from thistle.attacks.evasion.table import parse_attacks
    from thistle.results.trained import find_subject

    names = parse_attacks("--attacks", attacks)
    if not names:
        raise UserError(f"--attacks {attacks!r}: names no attack; try {PAPERS}")
    for option, value in (("epsilon", epsilon), ("step", step)):
        if value is not None and not 0 < value <= 1:
            raise UserError(f"--{option} {value:g}: pixels are in [0, 1], so it should be above 0 and at most 1")
    subject = find_subject(source, out, experiment)
    show(measure(subject, names, samples, epsilon or subject.experiment.client.epsilon, step), subject, pictures)


@dataclass(frozen=True, eq=False)
class Measured:
    """What was attacked, and which of it was still right under each attack."""

    document: dict[str, Any]
    classes: tuple[str, ...]
    network: nn.Module
    pixels: Tensor
    labels: Tensor


def measure(subject: Subject, names: list[str], samples: int, epsilon: float, step: float | None) -> Measured:
    """Accuracy under every attack, all in all and class by class."""
    import torch

    from thistle.attacks.evasion.measure import Adversary, share, share_by_class, survivors
    from thistle.protocol.layout import sha256
    from thistle.results.trained import read_network
    from thistle.server.evaluation import sample
    from thistle.tasks.task import prepare_task
    from thistle.tasks.training import channels_last, pick_device, to_tensors

    torch.set_num_threads(1)
    experiment = subject.experiment
    device = pick_device("auto")  # where it was trained is no matter
    with decoding() as progress:
        task = prepare_task(experiment.task, experiment.seed, server_data=False, progress=progress)
    network = read_network(subject, task.shape, task.classes).to(device)
    pixels, labels = to_tensors(task.dataset.test, device)
    rows = sample(len(labels), samples, experiment.seed).to(device)
    pixels, labels = channels_last(pixels[rows]), labels[rows]
    adversary = Adversary(epsilon, step, experiment.seed, experiment.evaluate.batch_size, task.bounds)
    overall: dict[str, float] = {}
    by_class: dict[str, dict[str, float | None]] = {}
    with attacking(len(labels) * len(names)) as tick:
        for name in names:
            right = survivors(network, pixels, labels, name, adversary, partial(tick, name))
            overall[name] = share(right)
            parts = share_by_class(right, labels, task.classes)
            by_class[name] = dict(zip(task.dataset.classes, parts, strict=True))
    document = {
        **overall,
        "per_class": by_class,
        "samples": len(labels),
        "epsilon": epsilon,
        "step": step or epsilon / 4,
        "model_sha256": sha256(network.state_dict()),
    }
    return Measured(document, task.dataset.classes, network, pixels, labels)


def show(measured: Measured, subject: Subject, pictures: bool) -> None:
    """The table on stdout; robustness.json and the pictures beside the model."""
    from thistle.results.draw import draw_by_class, draw_features

    document = measured.document
    write_json(subject.home / "robustness.json", document)
    rows = []
    for name, by_class in document["per_class"].items():
        known = {one: value for one, value in by_class.items() if value is not None}
        worst = min(known, key=lambda one: known[one])
        rows.append([name, f"{document[name]:.1%}", f"{known[worst]:.1%} ({worst})"])
    title = f"{subject.home.name}: {document['samples']} test images, ε = {document['epsilon']:.4g}"
    results.print(table(title, ["attack", "accuracy", "worst class"], rows))
    results.print(f"figures: {subject.home / 'robustness.json'}", markup=False, soft_wrap=True)
    if pictures:
        bars, features = subject.home / "robustness.png", subject.home / "features.png"
        draw_by_class(document["per_class"], title, bars)
        few = slice(0, FEATURES)
        draw_features(measured.network, measured.pixels[few], measured.labels[few], measured.classes, features)
        results.print(f"pictures: {bars}, {features}", markup=False, soft_wrap=True)
