"""`thistle evaluate`: test a trained model on its test set or on your own data, with and without attacks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thistle.commands.options import Out
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_json
from thistle.results.shown import quality_rows
from thistle.terminal.screen import attacking, decoding, results, table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thistle.results.trained import Subject
    from thistle.tasks.dataset import Images

PAPERS = "natural,fgsm,bim,cw,pgd20"
FEATURES = 1000
"""Images at most in the picture of features: t-SNE takes a minute for more."""


def evaluate(
    source: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="A run folder or a run's name, or a .safetensors file.")
    ],
    attacks: Annotated[
        str,
        typer.Option(
            help=f"natural, fgsm, bim, cw, pgd20 (any pgdK), aa; separate with commas. Default: {PAPERS}; with --data: "
            "natural."
        ),
    ] = "",
    samples: Annotated[int, typer.Option(min=0, help="Test images to attack; 0: all.")] = 0,
    epsilon: Annotated[
        float | None, typer.Option(help="How far a pixel (0 to 1) may change; default: the run's client.epsilon.")
    ] = None,
    step: Annotated[float | None, typer.Option(help="The attacks' step size; default: ε/4.")] = None,
    experiment: Annotated[
        str,
        typer.Option(metavar="PRESET|FILE.toml", help="For a MODEL outside a run folder: its experiment."),
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            metavar="FORM:PATH", help="Test on your own data instead: folder:PATH, npz:PATH, csv:PATH or parquet:PATH."
        ),
    ] = "",
    out: Out = "runs",
    pictures: Annotated[bool, typer.Option(help="Draw accuracy by class and the features.")] = True,
) -> None:
    """Test and attack a trained model; write the figures next to it: robustness.json, with --data evaluation.json."""
    from thistle.attacks.evasion.table import parse_attacks
    from thistle.results.trained import find_subject

    names = parse_attacks("--attacks", attacks or ("natural" if data else PAPERS))
    if not names:
        raise UserError(f"--attacks {attacks!r}: names no attack; try {PAPERS}")
    for option, value in (("epsilon", epsilon), ("step", step)):
        if value is not None and not 0 < value <= 1:
            raise UserError(f"--{option} {value:g}: pixels are in [0, 1], so it should be above 0 and at most 1")
    subject = find_subject(source, out, experiment)
    terms = Terms(names, samples, epsilon or subject.experiment.client.epsilon, step, data)
    show(measure(subject, terms), subject, pictures and not data)


@dataclass(frozen=True)
class Terms:
    """What is tested on what."""

    attacks: list[str]
    samples: int
    epsilon: float
    step: float | None
    data: str = ""
    """Of the user's; empty: the test set of the task."""

    @property
    def file(self) -> str:
        """Where the figures go."""
        return "evaluation.json" if self.data else "robustness.json"


@dataclass(frozen=True, eq=False)
class Measured:
    """What was attacked, and which of it was still right under each attack."""

    terms: Terms
    document: dict[str, Any]
    classes: tuple[str, ...]
    network: nn.Module
    pixels: Tensor
    labels: Tensor


def measure(subject: Subject, terms: Terms) -> Measured:
    """What clinicians ask of it, and accuracy under every attack, in total and by class."""
    import torch

    from thistle.attacks.evasion.measure import Adversary, share, share_by_class, survivors
    from thistle.protocol.layout import sha256
    from thistle.results.trained import read_network
    from thistle.server.evaluation import sample
    from thistle.server.quality import quality
    from thistle.tasks.threads import every_core
    from thistle.tasks.training import channels_last, pick_device, to_tensors
    from thistle.tasks.training import evaluate as logits_of

    torch.set_num_threads(1)
    experiment = subject.experiment
    device = pick_device("auto")  # it does not matter where it was trained
    classes, test = _test_set(subject, terms.data)
    network = read_network(subject, test.shape, len(classes)).to(device)
    pixels, labels = to_tensors(test, device)
    logits, loss = logits_of(network, pixels, labels, experiment.evaluate.batch_size)
    found = {"accuracy": float((logits.argmax(1) == labels).double().mean()), "loss": loss, "examples": len(labels)}
    found |= quality(logits, labels, len(classes))
    rows = sample(len(labels), terms.samples, experiment.seed).to(device)
    pixels, labels = channels_last(pixels[rows]), labels[rows]
    adversary = Adversary(terms.epsilon, terms.step, experiment.seed, experiment.evaluate.batch_size, test.bounds)
    overall: dict[str, float] = {}
    by_class: dict[str, dict[str, float | None]] = {}
    with every_core(), attacking(len(labels) * len(terms.attacks)) as tick:
        for name in terms.attacks:
            right = survivors(network, pixels, labels, name, adversary, partial(tick, name))
            overall[name] = share(right)
            parts = share_by_class(right, labels, len(classes))
            by_class[name] = dict(zip(classes, parts, strict=True))
    document = {
        **overall,
        "per_class": by_class,
        "samples": len(labels),
        "epsilon": terms.epsilon,
        "step": terms.step or terms.epsilon / 4,
        "classes": list(classes),
        "quality": found,
        **({"data": terms.data} if terms.data else {}),
        "model_sha256": sha256(network.state_dict()),
    }
    return Measured(terms, document, classes, network, pixels, labels)


def _test_set(subject: Subject, data: str) -> tuple[tuple[str, ...], Images]:
    """The classes and what is tested on: the task's test set, or all of the user's data under the model's classes."""
    from thistle.results.trained import read_facts
    from thistle.tasks.serverdata import read_under
    from thistle.tasks.task import prepare_task

    task, seed = subject.experiment.task, subject.experiment.seed
    facts = read_facts(subject)
    if data:
        return facts.classes, read_under(data, task, facts, "--data")
    with decoding() as progress:
        made = prepare_task(task, seed, server_data=False, progress=progress, scheme=facts.scheme, shared=False)
    return made.dataset.classes, made.dataset.test


def quality_table(found: dict[str, Any], classes: tuple[str, ...], where: str) -> Any:
    """A line for each class, and one for all of them."""
    title = f"{where}: {found['examples']} examples"
    return table(title, ["class", "sensitivity", "specificity", "AUC", "mistaken for"], quality_rows(found, classes))


def show(measured: Measured, subject: Subject, pictures: bool) -> None:
    """The table on stdout; robustness.json and the pictures beside the model."""
    from thistle.results.draw import draw_by_class, draw_features

    document, file = measured.document, subject.home / measured.terms.file
    write_json(file, document)
    results.print(quality_table(document["quality"], measured.classes, measured.terms.data or "the test set"))
    rows = []
    for name, by_class in document["per_class"].items():
        known = {one: value for one, value in by_class.items() if value is not None}
        worst = min(known, key=lambda one: known[one])
        rows.append([name, f"{document[name]:.1%}", f"{known[worst]:.1%} ({worst})"])
    title = f"{subject.home.name}: {document['samples']} examples, ε = {document['epsilon']:.4g}"
    results.print(table(title, ["attack", "accuracy", "worst class"], rows))
    results.print(f"figures: {file}", markup=False, soft_wrap=True)
    if pictures:
        bars, features = subject.home / "robustness.png", subject.home / "features.png"
        draw_by_class(document["per_class"], title, bars)
        few = slice(0, FEATURES)
        draw_features(measured.network, measured.pixels[few], measured.labels[few], measured.classes, features)
        results.print(f"pictures: {bars}, {features}", markup=False, soft_wrap=True)
