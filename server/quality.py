"""What clinicians ask of a classifier besides its accuracy, from the logits of one pass over a test set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BINS = 15
"""Of confidence, for the calibration error."""
MOST_CLASSES = 50
"""With more classes the confusion matrix is left out: it would be most of the run folder."""


def quality(logits: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    """Macro-F1; AUC, sensitivity and specificity of each class against the rest; calibration error; confusion matrix.

    None where something is not defined: a class without test examples has no sensitivity.
    """
    table = confusion(logits.argmax(1), labels, classes)
    hits, actual, predicted = table.diagonal(), table.sum(1), table.sum(0)
    others, false_alarms = len(labels) - actual, predicted - hits
    sound = bool(torch.isfinite(logits).all())
    probabilities = logits.double().softmax(1)
    aucs = one_versus_rest(probabilities, labels, classes) if sound else [None] * classes
    known = [auc for auc in aucs if auc is not None]
    seen = (actual + predicted) > 0
    scores = 2 * hits[seen] / (actual + predicted)[seen]
    return {
        "macro_f1": float(scores.double().mean()),
        "auc": sum(known) / len(known) if known else None,
        "calibration_error": calibration_error(probabilities, labels) if sound else None,
        "class_auc": aucs,
        "sensitivity": _shares(hits, actual),
        "specificity": _shares(others - false_alarms, others),
        **({"confusion": table.tolist()} if classes <= MOST_CLASSES else {}),
    }


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How many examples of each class (rows) are classified as which (columns)."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).cpu()


def one_versus_rest(probabilities: Tensor, labels: Tensor, classes: int) -> list[float | None]:
    """Each class's area under the ROC curve: how often its examples score higher than others (a tie counts half)."""
    columns = probabilities.T.contiguous()
    ordered = columns.sort(1).values
    below, upto = (torch.searchsorted(ordered, columns, right=side) for side in (False, True))
    ranks = (below + upto + 1).double() / 2
    found: list[float | None] = []
    for number in range(classes):
        own = labels == number
        positives, negatives = int(own.sum()), int((~own).sum())
        above = float(ranks[number][own].sum()) - positives * (positives + 1) / 2
        found.append(above / (positives * negatives) if positives and negatives else None)
    return found


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017): |accuracy − confidence| in equal bins, weighted by their sizes."""
    confidence, taken = probabilities.max(1)
    right = (taken == labels).double()
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.double, device=bins.device).index_add_(0, bins, right - confidence)
    return float(gaps.abs().sum()) / len(labels)


def _shares(part: Tensor, whole: Tensor) -> list[float | None]:
    return [int(one) / int(all_) if all_ else None for one, all_ in zip(part, whole, strict=True)]
