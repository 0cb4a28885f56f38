"""What a run's defence did to its replies, in the terms of the closing tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thistle.experiments.runfolder import detection_parts


def detected(summary: Mapping[str, Any]) -> dict[str, str]:
    """The filter's replies as a count, the whole defence against the truth; empty where nobody knows the truth."""
    if not summary.get("detection"):
        return {}
    found = detection_parts(summary["detection"])["whole"]
    judged = summary["accepted"] + summary["filtered"]
    return {
        "replies filtered": f"{summary['filtered']} of {judged}",
        "attackers caught": percent(found["recall"]),
        "precision": percent(found["precision"]),
        "honest excluded": percent(found["honest_excluded"]),
    }


def percent(value: float | None) -> str:
    """A share for a table; a dash where there is nothing to divide by."""
    return "–" if value is None else f"{value:.0%}"
