"""Other people's images under the task's labels: classes are matched by their names."""

from __future__ import annotations

import numpy as np

from thistle.experiments.errors import UserError


def match_classes(theirs: tuple[str, ...], ours: tuple[str, ...], where: str) -> np.ndarray:
    """Our label of each of their classes: the same name, or else the only one that differs in case alone.

    `where` names their data in an error.
    """
    labels = [_label_of(name, ours) for name in theirs]
    unknown = [name for name, label in zip(theirs, labels, strict=True) if label is None]
    if unknown:
        raise UserError(
            f"{where} has classes that the task lacks: {', '.join(unknown)}; "
            f"rename or remove them; the task's classes are {', '.join(ours)}"
        )
    return np.array(labels, dtype=np.int64)


def _label_of(name: str, ours: tuple[str, ...]) -> int | None:
    if name in ours:
        return ours.index(name)
    alike = [label for label, own in enumerate(ours) if own.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None
