"""How well the defence told friend from foe: verdicts joined with the truth, after the fact.

Nothing here is seen by a strategy: the truth of a simulation is used for scoring only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from thistle.attacks.roles import active, attackers
from thistle.experiments.experiment import Experiment
from thistle.protocol.verdict import Verdict

EXCLUDED = ("filtered", "rejected")
UNKNOWN: dict[str, object] = {"malicious": None, "kind": None, "start": None, "stop": None, "period": None}
"""truth.json of a deployed federation."""


@dataclass(frozen=True)
class Score:
    """Counts of judged replies; "positive" is an exclusion. Who failed to answer is not judged, but counted."""

    true_positive: int = 0
    false_positive: int = 0
    false_negative: int = 0
    true_negative: int = 0
    failed_attackers: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.true_positive + other.true_positive,
            self.false_positive + other.false_positive,
            self.false_negative + other.false_negative,
            self.true_negative + other.true_negative,
            self.failed_attackers + other.failed_attackers,
        )

    @property
    def every_attacker_failed(self) -> bool:
        """Whether none of those who should have attacked sent anything."""
        return self.failed_attackers > 0 and self.true_positive + self.false_negative == 0

    def figures(self) -> dict[str, float | None]:
        """precision, recall, f1 and the share of honest replies that was excluded; None where undefined."""
        precision = _ratio(self.true_positive, self.true_positive + self.false_positive)
        recall = _ratio(self.true_positive, self.true_positive + self.false_negative)
        f1 = _ratio(2 * self.true_positive, 2 * self.true_positive + self.false_positive + self.false_negative)
        honest = _ratio(self.false_positive, self.false_positive + self.true_negative)
        attacked = self.true_positive + self.false_negative > 0
        return {
            "precision": precision if attacked else None,
            "recall": recall,
            "f1": f1 if attacked else None,
            "honest_excluded": honest,
        }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class Truth:
    """Who is malicious, and when."""

    experiment: Experiment

    @property
    def malicious(self) -> frozenset[int]:
        return attackers(self.experiment.attack, self.experiment.task.clients, self.experiment.seed)

    def score(self, number: int, verdicts: Collection[Verdict]) -> Score:
        """One round's verdicts; an attacker that rests is honest that round."""
        foes = self.malicious if active(self.experiment.attack, number) else frozenset()
        counts = Counter((v.client in foes, v.verdict in EXCLUDED) for v in verdicts if v.verdict != "failed")
        failed = sum(v.client in foes for v in verdicts if v.verdict == "failed")
        return Score(counts[True, True], counts[False, True], counts[True, False], counts[False, False], failed)

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
