"""The figures that clinicians ask for, against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, f1_score, recall_score, roc_auc_score

from thistle.server.quality import MOST_CLASSES, quality


def made(seed: int, count: int, classes: int, ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, classes)) * 2
    labels = rng.integers(0, classes, count)
    logits[np.arange(count), labels] += 1
    if ties:
        logits = np.rint(logits)
    return torch.from_numpy(logits).float(), torch.from_numpy(labels)


@given(st.integers(0, 10_000), st.integers(1, 80), st.integers(2, 6), st.booleans())
def test_they_are_those_of_scikit_learn(seed: int, count: int, classes: int, ties: bool) -> None:
    logits, labels = made(seed, count, classes, ties)
    found, names = quality(logits, labels, classes), list(range(classes))
    taken, actual = logits.argmax(1).numpy(), labels.numpy()
    matrix = confusion_matrix(actual, taken, labels=names)
    assert found["confusion"] == matrix.tolist()
    assert found["macro_f1"] == pytest.approx(f1_score(actual, taken, average="macro", zero_division=0))
    probabilities = logits.double().softmax(1).numpy()
    for number in names:
        own = actual == number
        if own.any():
            sensitivity = recall_score(own, taken == number)
            assert found["sensitivity"][number] == pytest.approx(sensitivity)
        else:
            assert found["sensitivity"][number] is None
        if own.all():
            assert found["specificity"][number] is None
        else:
            assert found["specificity"][number] == pytest.approx(recall_score(~own, taken != number))
        if own.any() and not own.all():
            assert found["class_auc"][number] == pytest.approx(roc_auc_score(own, probabilities[:, number]))
        else:
            assert found["class_auc"][number] is None


def test_the_mean_auc_is_one_versus_rest() -> None:
    logits, labels = made(3, 200, 4, ties=False)
    probabilities = logits.double().softmax(1).numpy()
    expected = roc_auc_score(labels.numpy(), probabilities, multi_class="ovr", average="macro")
    assert quality(logits, labels, 4)["auc"] == pytest.approx(expected)


def test_calibration_by_hand() -> None:
    sure, unsure = [4.0, 0.0], [0.2, 0.0]  # confidences 0.982 and 0.550, in different bins
    logits = torch.tensor([sure, sure, unsure, unsure])
    labels = torch.tensor([0, 0, 0, 1])
    high, low = 1 / (1 + np.exp(-4.0)), 1 / (1 + np.exp(-0.2))
    expected = (2 * abs(1 - high) + 2 * abs(0.5 - low)) / 4
    assert quality(logits, labels, 2)["calibration_error"] == pytest.approx(expected, rel=1e-6)


def test_a_destroyed_model_has_no_auc_and_many_classes_no_matrix() -> None:
    found = quality(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1]), 2)
    assert found["auc"] is None and found["calibration_error"] is None and found["class_auc"] == [None, None]
    assert np.sum(found["confusion"]) == 4
    assert "confusion" not in quality(torch.zeros(1, MOST_CLASSES + 1), torch.tensor([0]), MOST_CLASSES + 1)
