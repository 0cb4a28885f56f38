"""The rules of others in small federations: blatant attackers are found, runs resume exactly, bad settings refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.federations import model_sha, rounds, run, tiny, verdicts
from tests.server.test_federation import Killed, MortalGrid
from thistle.experiments.errors import UserError
from thistle.experiments.extras import EXTRAS
from thistle.experiments.runfolder import read_json, read_lines
from thistle.strategies.build import find, resolve

FLIPPED = {
    "task.clients": 10,
    "client.per-round": 10,
    "client.epochs": 3,
    "rounds": 6,
    "task.partition": "iid",
    "attack.kind": "sign-flip",
    "attack.strength": 5.0,
    "attack.fraction": 0.3,
}
RULES: dict[str, dict[str, Any]] = {
    "dnc": {"strategy.malicious": 3},
    "flame": {},
    "signguard": {},
    "lasa": {},
    "multi-metrics": {},
    "fldetector": {"strategy.window": 3, "attack.start": 5, "rounds": 8},
    "bant": {},
}


@pytest.mark.parametrize("name", RULES)
def test_sign_flippers_are_found(tmp_path: Path, name: str) -> None:
    """In the last round the rule filters all of them, or (LASA, layer by layer) gives them almost no weight."""
    keys = {**FLIPPED, **RULES[name]}
    folder = run(tiny(tmp_path, **keys, **{"strategy.name": name}))
    malicious = set(read_json(folder.truth)["malicious"])
    last = [line for line in read_lines(folder.verdicts) if line["round"] == keys["rounds"]]
    judged = [line for line in last if line["step"]]
    assert len(malicious) == 3 and malicious <= {line["client"] for line in judged}
    assert {line["step"] for line in judged} == {name} and all(line["reason"] for line in judged)
    assert name == "lasa" or {line["verdict"] for line in judged} == {"filtered"}
    assert all(line["score"] is not None for line in last if not line["step"])
    assert rounds(folder)[-1]["accuracy"] > 0.7


@pytest.mark.parametrize("late", [{}, {"attack.start": 5, "rounds": 8}], ids=["always", "late"])
def test_the_attack_does_harm(tmp_path: Path, late: dict[str, Any]) -> None:
    """Or the test above tests nothing."""
    assert rounds(run(tiny(tmp_path, **{**FLIPPED, **late})))[-1]["accuracy"] < 0.3


@pytest.mark.parametrize("name", ["fldetector", "bant"])
@pytest.mark.parametrize("killed", [4, 7])
def test_a_run_that_was_killed_before_or_after_a_detection_resumes_exactly(
    tmp_path: Path, name: str, killed: int
) -> None:
    keys = {**FLIPPED, "strategy.name": name, **RULES[name], "attack.start": 1, "rounds": 8}
    whole = run(tiny(tmp_path, "whole", **keys))
    assert any(line["verdict"] == "filtered" for line in read_lines(whole.verdicts))
    broken = tiny(tmp_path, "broken", **keys)
    with pytest.raises(Killed):
        run(broken, MortalGrid(broken, killed))
    resumed = run(tiny(tmp_path, "broken", **keys, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(whole)
    assert verdicts(resumed) == verdicts(whole)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too many": (
        {"name": "dnc", "malicious": 5, "drop-factor": 2.5},
        "strategy.malicious = 5: dnc needs at least 14 updates per round, but gets 10",
    ),
    "a minority": ({"name": "dnc", "malicious": 5}, "strategy.malicious = 5: dnc needs at least 11 updates"),
    "nobody": ({"name": "multi-metrics", "keep": 0.0}, "strategy.keep = 0.0: should be greater than 0"),
    "everything": ({"name": "lasa", "sparsity": 1.0}, "strategy.sparsity = 1.0: should be less than 1"),
    "short": ({"name": "signguard", "shortest": 1.5}, "strategy.shortest = 1.5: should be less than or equal to 1"),
    "mixed rows": ({"name": "fldetector", "pre": "nnm"}, "strategy.pre = nnm: fldetector looks at each client's own"),
    "mixed trials": ({"name": "bant", "pre": "bucketing"}, "strategy.pre = bucketing: bant looks at each client's own"),
    "sizes beside trust": (
        {"name": "bant", "weighted": True},
        "strategy.weighted = true: bant has no such setting; those that have it: fedavg",
    ),
    "no data": ({"name": "bant", "task.server-data": "none"}, "strategy.name = bant needs server data"),
}


def resolved(keys: dict[str, Any]) -> Any:
    flat = {key if "." in key else f"strategy.{key}": value for key, value in keys.items()}
    return resolve(tiny(Path(), **{"client.per-round": 10, **flat}))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(case: str) -> None:
    keys, message = REFUSED[case]
    with pytest.raises(UserError) as refused:
        resolved(keys)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_signguard_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thistle.experiments.extras.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        resolved({"name": "signguard"})
    assert str(refused.value).endswith(f"pip install 'thistle-fl[{EXTRAS['sklearn']}]'")
    resolved({"name": "flame"})


@pytest.mark.parametrize(
    ("name", "given", "is_mean"),
    [
        ("dnc", {}, False),
        ("dnc", {"malicious": 0}, True),
        ("multi-metrics", {}, False),
        ("multi-metrics", {"keep": 1.0}, True),
        ("flame", {}, False),
        ("signguard", {}, False),
        ("lasa", {}, False),
        ("fldetector", {}, True),
        ("bant", {}, True),
    ],
)
def test_who_must_be_clipped_on_real_nodes(name: str, given: dict[str, Any], is_mean: bool) -> None:
    assert find(name)(**given).is_mean() == is_mean


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("fldetector", "bant")])
@pytest.mark.parametrize("pre", ["nnm", "bucketing"])
def test_mixed_rows_are_clients_to_them(tmp_path: Path, name: str, pre: str) -> None:
    keys = {**FLIPPED, "attack.fraction": 0.1, "strategy.name": name, "strategy.pre": pre}
    folder = run(tiny(tmp_path, **keys))
    assert rounds(folder)[-1]["accuracy"] > 0.6
