"""A summary's numbers under the names that people read: the same in every table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from thistle.experiments.runfolder import detection_parts

Summary = Mapping[str, Any]


def mean_of(averaged: Iterable[float | None]) -> str:
    """What `final_accuracy` is called, from `evaluations_averaged` of one run or several."""
    counts = set(averaged)
    k = counts.pop() if len(counts) == 1 else None
    return "mean of the last evaluation" if k == 1 else f"mean of the last {k or 'k'} evaluations"


def accuracies(summary: Summary) -> dict[str, float]:
    """Last, best, mean: those that exist, which is not all in runs of older versions."""
    mean = mean_of([summary.get("evaluations_averaged")])
    named = {"last accuracy": "last_accuracy", "best accuracy": "max_accuracy", mean: "final_accuracy"}
    return {name: summary[field] for name, field in named.items() if summary.get(field) is not None}


def accuracy_line(summary: Summary) -> str:
    """`last accuracy 0.9060, best accuracy 0.9060, mean of the last 3 evaluations 0.8934`."""
    return ", ".join(f"{name} {value:.4f}" for name, value in accuracies(summary).items())


def worst_class(summary: Summary) -> tuple[int, float] | None:
    """Its number and its accuracy; the first of several."""
    values = summary.get("class_accuracy")
    listed = values if isinstance(values, list) else []
    known = [(value, number) for number, value in enumerate(listed) if isinstance(value, int | float)]
    value, number = min(known, default=(0.0, -1))
    return (number, value) if known else None


def lifespan(summary: Summary) -> str:
    """Of a backdoor, or why it has none; empty: there is no backdoor."""
    if "backdoor_lifespan" not in summary:
        return ""
    rounds = summary["backdoor_lifespan"]
    return str(summary.get("backdoor_lifespan_reason", "")) if rounds is None else f"{rounds} rounds"


def quality_rows(found: Mapping[str, Any], classes: Sequence[str]) -> list[list[str]]:
    """For each class: sensitivity, specificity, AUC, and what its examples are classified as; then the means."""
    matrix = found.get("confusion") or [[]] * len(classes)
    rows = []
    for number, name in enumerate(classes):
        figures = (found[key][number] for key in ("sensitivity", "specificity", "class_auc"))
        taken = sorted(zip(matrix[number], classes, strict=False), reverse=True, key=lambda one: one[0])
        counts = ", ".join(f"{count} {other}" for count, other in taken[:4] if count)
        rows.append([name, *map(as_share, figures), counts])
    total = f"accuracy {as_share(found['accuracy'])}, macro-F1 {as_share(found['macro_f1'])}, "
    total += f"calibration error {as_share(found['calibration_error'])}"
    return [*rows, ["all", "", "", as_share(found["auc"]), total]]


def as_share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


@dataclass(frozen=True)
class Figure:
    """A number of a summary: what it is called, in which unit, and how to find it."""

    name: str
    unit: Literal["share", "rounds", "seconds"]
    of: Callable[[Summary], float | None]


def _at(*path: str) -> Callable[[Summary], float | None]:
    def find(summary: Summary) -> float | None:
        value: Any = summary
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    return find


def _lowest(summary: Summary) -> float | None:
    found = worst_class(summary)
    return found[1] if found else None


def _detected(name: str) -> Callable[[Summary], float | None]:
    """Of the whole defence."""

    def find(summary: Summary) -> float | None:
        found = summary.get("detection")
        whole = detection_parts(found).get("whole") if isinstance(found, Mapping) else None
        return whole.get(name) if isinstance(whole, Mapping) else None

    return find


FIGURES = (
    Figure("last", "share", _at("last_accuracy")),
    Figure("best", "share", _at("max_accuracy")),
    Figure("mean of the last k", "share", _at("final_accuracy")),
    Figure("worst class", "share", _lowest),
    Figure("macro-F1", "share", _at("macro_f1")),
    Figure("AUC", "share", _at("auc")),
    Figure("calibration error", "share", _at("calibration_error")),
    Figure("worst client", "share", _at("client_accuracy", "worst")),
    Figure("10th percentile of clients", "share", _at("client_accuracy", "p10")),
    Figure("mean of clients", "share", _at("client_accuracy", "mean")),
    Figure("backdoor success", "share", _at("attack_success")),
    Figure("backdoor lifespan, rounds", "rounds", _at("backdoor_lifespan")),
    Figure("precision", "share", _detected("precision")),
    Figure("recall", "share", _detected("recall")),
    Figure("honest excluded", "share", _detected("honest_excluded")),
    Figure("seconds of the defence", "seconds", _at("seconds_defence")),
)
"""What tables show beside the main one, in their order."""
