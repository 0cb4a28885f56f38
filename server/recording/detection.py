"""How well the defence told friend from foe: verdicts joined with the truth, after the fact.

Nothing here is seen by a strategy: the truth of a simulation is used for scoring only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from thistle.attacks.roles import active, attackers
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import detection_parts
from thistle.protocol.verdict import Verdict

UNKNOWN: dict[str, object] = {"malicious": None, "kind": None, "start": None, "stop": None, "period": None}
"""truth.json of a deployed federation."""


@dataclass(frozen=True)
class Score:
    """Counts of judged replies; "positive" is an exclusion."""

    true_positive: int = 0
    false_positive: int = 0
    false_negative: int = 0
    true_negative: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def attacks(self) -> int:
        return self.true_positive + self.false_negative

    def figures(self) -> dict[str, float | None]:
        """precision, recall, f1 and the share of honest replies that was excluded; None where undefined."""
        precision = _ratio(self.true_positive, self.true_positive + self.false_positive)
        recall = _ratio(self.true_positive, self.true_positive + self.false_negative)
        f1 = _ratio(2 * self.true_positive, 2 * self.true_positive + self.false_positive + self.false_negative)
        honest = _ratio(self.false_positive, self.false_positive + self.true_negative)
        return {
            "precision": precision if self.attacks else None,
            "recall": recall,
            "f1": f1 if self.attacks else None,
            "honest_excluded": honest,
        }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class Detection:
    """The filter by itself, and the whole defence. Who failed to answer is not judged, but counted."""

    filter: Score = field(default_factory=Score)
    """Of the replies that the guard let pass: whom a step filtered out."""
    whole: Score = field(default_factory=Score)
    """Of all replies: whose update was filtered out, rejected, or had almost no weight."""
    failed_attackers: int = 0

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> Detection:
        """From a line of metrics.jsonl."""
        parts = {name: Score(**found) for name, found in detection_parts(counts).items()}
        return cls(**parts, failed_attackers=counts.get("failed_attackers", 0))

    def __add__(self, other: Detection) -> Detection:
        failed = self.failed_attackers + other.failed_attackers
        return Detection(self.filter + other.filter, self.whole + other.whole, failed)

    @property
    def every_attacker_failed(self) -> bool:
        """Whether no client that should have attacked sent anything."""
        return self.failed_attackers > 0 and not self.whole.attacks

    def counts(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        return asdict(self)

    def figures(self) -> dict[str, dict[str, float | None]]:
        """For summary.json."""
        return {"filter": self.filter.figures(), "whole": self.whole.figures()}


@dataclass(frozen=True)
class Truth:
    """Who is malicious, and when."""

    experiment: Experiment

    @property
    def malicious(self) -> frozenset[int]:
        return attackers(self.experiment.attack, self.experiment.task.clients, self.experiment.seed)

    def score(self, number: int, verdicts: Collection[Verdict], behaving: Collection[int] = ()) -> Detection:
        """One round's verdicts; an attacker that rests, or is `behaving` to be trusted, is honest that round."""
        foes = self.malicious.difference(behaving) if active(self.experiment.attack, number) else frozenset()
        answered = [v for v in verdicts if v.verdict != "failed"]
        return Detection(
            _score([v for v in answered if v.verdict != "rejected"], foes, lambda v: v.verdict == "filtered"),
            _score(answered, foes, lambda v: not v.mattered),
            sum(v.client in foes for v in verdicts if v.verdict == "failed"),
        )

    def document(self) -> dict[str, object]:
        """For truth.json."""
        attack = self.experiment.attack
        return {
            "malicious": sorted(self.malicious),
            "kind": attack.kind,
            "start": attack.start,
            "stop": attack.stop,
            "period": attack.period,
        }


def _score(verdicts: Collection[Verdict], foes: Collection[int], excluded: Callable[[Verdict], bool]) -> Score:
    counts = Counter((v.client in foes, excluded(v)) for v in verdicts)
    return Score(counts[True, True], counts[False, True], counts[True, False], counts[False, False])
