"""A model card: what a model is for, where it comes from, how good it is, and who should not be trusted with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thistle.experiments.runfolder import RunFolder, read_json
from thistle.results import shown
from thistle.results.sites import findings

if TYPE_CHECKING:
    from thistle.results.trained import Subject


def write_card(subject: Subject, classes: Sequence[str], shape: Sequence[int], file: Path, checked: str) -> str:
    """As Markdown, from the run folder alone."""
    folder = RunFolder(subject.home)
    summary = read_json(folder.summary) if folder.summary.is_file() else {}
    return "\n".join(
        [
            f"# Model card: {subject.home.name}",
            "",
            *_model(classes, shape, file, checked, summary),
            *_training(subject, summary, folder),
            *_results(classes, summary, folder),
            *_sites(summary),
            *LIMITS,
            "",
        ]
    )


def _model(
    classes: Sequence[str], shape: Sequence[int], file: Path, checked: str, summary: Mapping[str, Any]
) -> list[str]:
    size = "×".join(map(str, shape))
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "–"
    return [
        "## The model",
        "",
        f"- File: `{file.name}`, SHA-256 `{digest}`; the weights' fingerprint `{summary.get('model_sha256', '–')}`",
        f"- Input `inputs`: float32, n×{size}, values as in training (images: from 0 to 1)",
        f"- Output `probabilities`: n×{len(classes)}, each row sums to 1; in this order: {', '.join(classes)}",
        f"- Check: {checked}",
        "",
    ]


def _training(subject: Subject, summary: Mapping[str, Any], folder: RunFolder) -> Iterator[str]:
    x = subject.experiment
    packages = read_json(folder.environment).get("packages", {}) if folder.environment.is_file() else {}
    made = ", ".join(f"{name} {packages[name]}" for name in ("thistle-fl", "flwr", "torch") if packages.get(name))
    yield from ("## Training", "")
    yield f"- Data: `{x.task.name}`, {x.task.clients} clients, of whom {x.client.per_round} train per round"
    yield f"- Network: `{x.model.name}`; strategy: `{x.strategy.name}`; seed: {x.seed}"
    yield f"- Rounds: {summary.get('rounds', '–')}"
    if x.attack.kind != "none":
        yield f"- Attacked on purpose: `{x.attack.kind}`. This is an experiment, not a model to use"
    yield f"- Made with {made or 'unknown versions'}; every setting is in `experiment.toml` of the run folder"
    yield ""


def _results(classes: Sequence[str], summary: Mapping[str, Any], folder: RunFolder) -> Iterator[str]:
    yield from ("## Results on the server's test set", "", "| figure | value |", "|---|---|")
    yield from (f"| {name} | {value:.4f} |" for name, value in shown.accuracies(summary).items())
    by_class = summary.get("class_accuracy")
    for name, value in zip(classes, by_class if isinstance(by_class, list) else [], strict=False):
        yield f"| accuracy of class {name} | {'no test data' if value is None else f'{value:.4f}'} |"
    robust = folder.path / "robustness.json"
    found = read_json(robust) if robust.is_file() else {}
    if found.get("model_sha256") == summary.get("model_sha256"):
        yield from (f"| accuracy under {name} | {found[name]:.4f} |" for name in found.get("per_class", {}))
    yield ""


def _sites(summary: Mapping[str, Any]) -> Iterator[str]:
    sites = summary.get("sites")
    if not isinstance(sites, Mapping):
        return
    yield from ("## Sites", "", "| site | rounds | used | left out | no answer |", "|---|---|---|---|---|")
    for name, said in sites.items():
        used = said["rounds"] - said["left_out"] - said["silent"]
        cell = str(name).replace("|", "\\|")
        yield f"| {cell} | {said['rounds']} | {used} | {said['left_out']} | {said['silent']} |"
    yield ""
    for one in findings(summary):
        yield from (f"**{one.site} {one.text}** {one.advice}", "")


LIMITS = (
    "## Limits",
    "",
    "- The figures hold for data like the server's test set. Test the model where it will be used.",
    "- It is not a medical device, and nobody has approved it for diagnosis or treatment.",
)
