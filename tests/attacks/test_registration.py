"""An attack is one file: what follows from its registration, which settings it has, and what older run folders say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.federations import TINY, model_sha, run, tiny
from thistle.attacks.checks import check_attack, resolve_attack
from thistle.attacks.poisoning import build
from thistle.attacks.poisoning.alie import alie_z
from thistle.attacks.poisoning.backdoor import Backdoor
from thistle.attacks.poisoning.build import Facts, make_poison
from thistle.attacks.poisoning.scale import Scale
from thistle.attacks.registry import ATTACKS, attack, attacks, chosen
from thistle.attacks.roles import node_keys, node_orders, part_of
from thistle.client.mods import poison
from thistle.commands.listing import TABLES, What
from thistle.deploy.nodeconfig import node_config
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.experiments.settings import Attack
from thistle.running.prepare import make_experiment

FACTS = Facts(classes=10, n=10, f=3)
JITTER = '''"""One file, as somebody would add it."""

from __future__ import annotations

from typing import Literal

from thistle.attacks.poisoning.parts import OnUpdate
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import Fraction, NonNegative


@attack("jitter", "Nobody 2026", knows="own data")
class Jitter(OnUpdate):
    """ν u, but for a part of it."""

    strength: NonNegative = setting("ν", default=2.0)
    part_kept: Fraction = setting("the part of the update that is sent as it is", default=0.5)
    side: Literal["front", "back"] = setting("which part is kept", default="front")

    def __call__(self, own, generator):
        kept = int(self.part_kept * len(own))
        sent = self.strength * own
        sent[: kept] = own[: kept]
        return sent if self.side == "front" else sent.flip(0)
'''


@pytest.fixture
def jitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new file among the attacks, and nothing else."""
    folder = tmp_path / "poisoning"
    folder.mkdir()
    (folder / "jitter.py").write_text(JITTER)
    package = sys.modules["thistle.attacks.poisoning"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr(ATTACKS, "_complete", False)
    yield
    ATTACKS._entries.pop("jitter", None)
    sys.modules.pop("thistle.attacks.poisoning.jitter", None)


@pytest.mark.usefixtures("jitter")
class TestOneFile:
    """Everything else follows from it."""

    def test_it_is_listed(self) -> None:
        _, rows = TABLES[What.ATTACKS]()
        assert ["jitter", "ν u, but for a part of it", "own data", "ν", "2", "Nobody 2026"] in rows
        assert next(iter(attacks())) == "none"

    def test_it_is_made(self) -> None:
        orders = Attack.model_validate({"kind": "jitter", "strength": 3.0, "part_kept": 0.25})
        update = make_poison(orders, FACTS).update
        assert update is not None
        assert update(torch.ones(4), torch.Generator()).tolist() == [1, 3, 3, 3]

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"part-kept": 1.5}, "attack.part-kept = 1.5: should be less than or equal to 1"),
            ({"part-kept": "half"}, "attack.part-kept = 'half': should be a number"),
            ({"side": "left"}, "attack.side = 'left': should be 'front' or 'back'"),
            ({"part-keep": 0.5}, "attack.part-keep: jitter has no such setting; did you mean attack.part-kept?"),
            ({"frction": 0.5}, "attack.frction: no such key; did you mean attack.fraction?"),
            ({"source": 3}, "attack.source = 3: jitter has no such setting; those that have it: label-flip-targeted"),
        ],
    )
    def test_its_settings_are_checked(self, keys: dict[str, Any], said: str) -> None:
        flat = {"attack.kind": "jitter", **{f"attack.{key}": value for key, value in keys.items()}}
        with pytest.raises(UserError) as refused:
            make_experiment(flat)
        assert str(refused.value) == said

    def test_a_run_keeps_every_setting_and_can_be_repeated(self, tmp_path: Path) -> None:
        keys = {"attack.kind": "jitter", "attack.fraction": 0.5, "attack.side": "back"}
        first = run(tiny(tmp_path, "first", rounds=2, **keys))
        saved = first.load_experiment()
        assert saved.attack.options == {"part_kept": 0.5, "side": "back"}
        assert model_sha(run(make_experiment(str(first.experiment), [], "again", str(tmp_path)))) == model_sha(first)
        other = run(tiny(tmp_path, "other", rounds=2, **keys, **{"attack.part-kept": 0.0}))
        assert model_sha(other) != model_sha(first)

    def test_nodes_and_mods_know_it(self) -> None:
        config = node_config("", "", "malicious", "jitter", ["attack-part-kept=0.25"])
        orders = node_orders(config)
        assert orders is not None and orders.options == {"part_kept": 0.25}
        assert "attack-side" in node_keys()
        assert poison("jitter", part_kept=0.25).update == chosen(orders)


def test_two_files_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="attack 'scale': already exists"):
        attack("scale", knows="own data")(type("Other", (Scale,), {"__module__": "elsewhere"}))


class TestOthersSettings:
    """What an attack does not have."""

    @pytest.mark.parametrize("kind", ["sign-flip", "alie", "mix", "none"])
    def test_refused_but_for_the_default(self, kind: str) -> None:
        check_attack(Attack.model_validate({"kind": kind, "boost": 5.0, "target": 0}), 50)
        for key, value in (("boost", 3.0), ("target", 1)):
            with pytest.raises(UserError) as refused:
                check_attack(Attack.model_validate({"kind": kind, key: value}), 50)
            said, _, owners = str(refused.value).partition("; those that have it: ")
            assert said == f"attack.{key} = {value}: {kind} has no such setting"
            assert "backdoor" in owners.split(", ")

    def test_python_is_told_too(self) -> None:
        with pytest.raises(UserError, match=r"Backdoor: boost = 0\.0: should be greater than 0"):
            Backdoor(boost=0.0)
        with pytest.raises(UserError, match=r"poison\('scale'\): boost = 2\.0: scale has no such setting"):
            poison("scale", boost=2.0)
        with pytest.raises(TypeError, match="omniscient"):
            poison("scale", omniscient=True)

    def test_a_node_is_told_in_its_own_words(self) -> None:
        with pytest.raises(UserError, match=r"^node config: attack-boost = 3\.0: scale has no such setting"):
            node_orders({"role": "malicious", "attack": "scale", "attack-boost": 3.0})
        told = node_orders({"role": "malicious", "attack": "backdoor", "attack-boost": 3.0, "attack-target": 2})
        assert told is not None and chosen(told) == Backdoor(boost=3.0, target=2)

    def test_another_attack_drops_them(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text('[attack]\nkind = "backdoor"\nfraction = 0.3\nboost = 3.0\n')
        assert make_experiment(str(file), ["attack.kind=scale"]).attack.options == {}
        assert make_experiment(str(file), ["attack.target=2"]).attack.options == {
            "boost": 3.0,
            "target": 2,
            "trigger": "patch",
        }
        with pytest.raises(UserError, match=r"attack\.target = 2: scale has no such setting"):
            make_experiment(str(file), ["attack.kind=scale", "attack.target=2"])

    def test_another_strategy_and_another_attack_at_once(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        settings = 'attack.kind = "backdoor"\nattack.fraction = 0.3\nattack.boost = 3.0\n'
        file.write_text(settings + 'strategy.name = "krum"\nstrategy.aggregator = "default"\nstrategy.malicious = 2\n')
        made = make_experiment(str(file), ["attack.kind=scale", "strategy.name=flwr-fedavg"])
        assert made.attack.options == {} and "malicious" not in made.strategy.options

    def test_the_word_default(self) -> None:
        """What pyproject.toml declares for `flwr run`."""
        flat = {"attack.kind": "scale", "attack.boost": "default", "attack.target": "default"}
        assert Experiment.of(flat).attack.options == {}


class TestRunFolders:
    """experiment.toml names every setting of its attack; older ones name boost and target for every attack."""

    def test_every_setting_of_the_attack_is_written(self, tmp_path: Path) -> None:
        keys = {"attack.kind": "backdoor", "attack.fraction": 0.5, "rounds": 1}
        folder = run(tiny(tmp_path, **keys))
        assert folder.load_experiment().attack.options == {"boost": 5.0, "target": 0, "trigger": "patch"}
        assert folder.load_experiment().attack.strength == 0.5
        resolved = resolve_attack(folder.load_experiment())
        assert resolved == folder.load_experiment() and resolve_attack(resolved) == resolved
        assert Experiment.of(resolved.flat()) == resolved

    @pytest.mark.parametrize(
        ("kind", "strength"), [("none", "default"), ("zero", "default"), ("ipm", 0.5), ("alie", alie_z(8, 4))]
    )
    def test_the_strength_is_a_number_and_the_bits_are_the_same(
        self, kind: str, strength: float | str, tmp_path: Path
    ) -> None:
        share = {} if kind == "none" else {"attack.fraction": 0.5}
        keys = {"attack.kind": kind, "client.per-round": 8, **share}
        folder = run(tiny(tmp_path, **keys))
        written = folder.load_experiment()
        assert written.attack.strength == strength
        again = run(Experiment.of({**written.flat(), "run.name": "again"}))
        assert model_sha(again) == model_sha(folder)

    def test_another_attack_does_not_take_over_the_strength(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.toml"
        file.write_text('attack.kind = "scale"\nattack.fraction = 0.3\nattack.strength = 77.0\n')
        assert make_experiment(str(file), ["attack.fraction=0.2"]).attack.strength == 77.0
        assert make_experiment(str(file), ["attack.kind=ipm"]).attack.strength == 0.5
        assert make_experiment(str(file), ["attack.kind=zero"]).attack.strength == "default"
        assert make_experiment(str(file), ["attack.kind=ipm", "attack.strength=3.0"]).attack.strength == 3.0

    @pytest.mark.parametrize("kind", ["none", "sign-flip", "alie"])
    def test_an_older_one_loads_and_resumes(self, kind: str, tmp_path: Path) -> None:
        keys: dict[str, Any] = {**TINY, "attack.kind": kind, "attack.fraction": 0.0 if kind == "none" else 0.5}
        old = {**keys, "attack.boost": 5.0, "attack.target": 0}
        whole = run(tiny(tmp_path, "whole", **keys))
        half = run(tiny(tmp_path, "half", **{**old, "rounds": 2}))
        text = half.experiment.read_text().replace("rounds = 2", "rounds = 4")
        half.experiment.write_text(text.replace("[attack]", "[attack]\nboost = 5.0\ntarget = 0"))
        again = RunFolder(half.path).load_experiment()
        assert {"boost": 5.0, "target": 0}.items() <= again.attack.options.items()
        resumed = run(Experiment.of({**again.flat(), "run.resume": True}))
        assert model_sha(resumed) == model_sha(whole)
        assert not {"boost", "target"} & resumed.load_experiment().attack.options.keys()


def test_own_attacks_get_what_they_always_had(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(build, "make_own", lambda name, key, attack, facts: seen.append(attack) or build.Poison())
    for settings in ({}, {"strength": 3.0, "boost": 2.0, "target": 4, "omniscient": True}):
        make_poison(Attack.model_validate({"kind": "mine:own", **settings}), FACTS)
    assert [(a.strength, a.boost, a.target, a.omniscient) for a in seen] == [(1.0, 5.0, 0, False), (3.0, 2.0, 4, True)]


def test_some_have_parts() -> None:
    assert [kind for kind, cls in attacks().items() if cls.has_parts] == ["dba", "mix"]
    orders = Attack(kind="scale", clients="1")
    assert part_of(orders, 1, 10, 0) is orders
