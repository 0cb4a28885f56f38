"""Each attack against a naive reference of its formula; who attacks, when, and whom they know."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from thistle.attacks.checks import check_attack
from thistle.attacks.poisoning.adaptive import Adaptive
from thistle.attacks.poisoning.alie import Alie, alie_z
from thistle.attacks.poisoning.backdoor import Backdoor
from thistle.attacks.poisoning.build import Facts, make_poison
from thistle.attacks.poisoning.fang import FangKrum, FangTrim
from thistle.attacks.poisoning.gaussian import Gaussian
from thistle.attacks.poisoning.ipm import Ipm
from thistle.attacks.poisoning.label_flip import LabelFlip, TargetedLabelFlip
from thistle.attacks.poisoning.mimic import Mimic
from thistle.attacks.poisoning.min_max import MinMax, MinSum
from thistle.attacks.poisoning.scale import Scale
from thistle.attacks.poisoning.sign_flip import SignFlip
from thistle.attacks.poisoning.trigger import make_trigger
from thistle.attacks.poisoning.zero import Zero
from thistle.attacks.registry import Evaluated, attacks, chosen, declared, strength_of
from thistle.attacks.roles import (
    PANEL,
    SIMULATED,
    active,
    attackers,
    expected_attackers,
    node_orders,
    numbers,
    orders,
    panel,
    part_of,
)
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Attack

FACTS = Facts(classes=10, n=10, f=3)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def updates() -> Tensor:
    """Five updates around a common direction."""
    return torch.randn(5, 300, generator=rng(1)) + 0.3 * torch.randn(300, generator=rng(2))


class TestOwnUpdate:
    """Attacks that know one update."""

    own = torch.tensor([1.0, -2.0, 3.0])

    def test_sign_flip(self) -> None:
        assert SignFlip(strength=5.0)(self.own, rng()).tolist() == [-5.0, 10.0, -15.0]

    def test_scale(self) -> None:
        assert Scale(strength=10.0)(self.own, rng()).tolist() == [10.0, -20.0, 30.0]

    def test_zero(self) -> None:
        assert Zero()(self.own, rng()).tolist() == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("s", [1.0, 10.0])
    def test_gaussian_has_the_norm_but_not_the_direction(self, s: float) -> None:
        own = torch.randn(10_000, generator=rng(3))
        noise = Gaussian(strength=s)(own, rng())
        assert float(noise.norm()) == pytest.approx(s * float(own.norm()), rel=1e-5)
        assert abs(float(torch.cosine_similarity(own, noise, dim=0))) < 0.05
        assert torch.equal(noise, Gaussian(strength=s)(own, rng()))


class TestOwnData:
    """Attacks that change a batch."""

    def test_label_flip_is_the_next_class(self) -> None:
        pixels, labels = torch.rand(3, 1, 8, 8), torch.tensor([0, 4, 9])
        same, flipped = LabelFlip()(pixels, labels, FACTS)
        assert same is pixels
        assert flipped.tolist() == [1, 5, 0]

    def test_the_patch_is_in_the_lower_right_corner(self) -> None:
        pixels = torch.zeros(2, 3, 8, 10)
        stamped = make_trigger("patch", (3, 8, 10), seed=0)(pixels)
        rows, columns = np.nonzero(stamped[0, 0].numpy())
        assert (set(rows), set(columns)) == ({5, 6, 7}, {7, 8, 9})
        assert float(stamped.sum()) == 2 * 3 * 9
        assert float(pixels.sum()) == 0

    @pytest.mark.parametrize(("size", "share", "stamped"), [(10, 0.5, 5), (5, 0.5, 3), (1, 0.5, 1), (8, 0.25, 2)])
    def test_backdoor_stamps_a_share_of_the_batch(self, size: int, share: float, stamped: int) -> None:
        pixels, labels = torch.zeros(size, 1, 8, 8), torch.full((size,), 3)
        poisoned, targets = Backdoor(target=7, strength=share)(pixels, labels, FACTS)
        assert targets.tolist() == [7] * stamped + [3] * (size - stamped)
        assert torch.equal(poisoned.amax((1, 2, 3)), (targets == 7).float())

    def test_success_counts_images_of_other_classes_only(self) -> None:
        class Trapped(nn.Module):
            """Takes an image with a white last pixel for class 2, unless its first one is white too."""

            def forward(self, pixels: Tensor) -> Tensor:
                found = (pixels[:, 0, -1, -1] == 1) & (pixels[:, 0, 0, 0] < 1)
                return nn.functional.one_hot(torch.where(found, 2, 0), 3).float()

        pixels, labels = torch.zeros(6, 1, 8, 8), torch.tensor([0, 1, 2, 2, 0, 1])
        pixels[0, 0, 0, 0] = 1
        assert Backdoor(target=2).measure(Evaluated(Trapped(), pixels, labels, 4)) == {"attack_success": 3 / 4}


class TestCollusion:
    """Attacks that know a panel of honest updates."""

    @pytest.mark.parametrize(
        ("n", "f", "z"),
        [(10, 3, 0.18001), (20, 6, 0.36611), (50, 24, 1.42608), (10, 1, 0.0), (10, 5, 0.84162), (10, 6, 3.09023)],
    )
    def test_z_is_the_normal_quantile(self, n: int, f: int, z: float) -> None:
        """Not the normal distribution itself: Φ(4/7) would be 0.716."""
        assert alie_z(n, f) == pytest.approx(z, abs=1e-4)

    @pytest.mark.parametrize("f", [1, 2])
    def test_z_of_tiny_rounds(self, f: int) -> None:
        assert alie_z(f, f) == pytest.approx(3.09023, abs=1e-4)

    def test_alie(self, updates: Tensor) -> None:
        columns = updates.double().numpy()
        expected = columns.mean(0) - 1.5 * columns.std(0)
        assert np.allclose(Alie(strength=1.5)(updates, FACTS).numpy(), expected, atol=1e-5)

    def test_ipm(self, updates: Tensor) -> None:
        assert torch.allclose(Ipm(strength=0.5)(updates, FACTS), -0.5 * sum(updates) / 5, atol=1e-6)

    def test_mimic(self, updates: Tensor) -> None:
        assert torch.equal(Mimic()(updates, FACTS), updates[0])

    @pytest.mark.parametrize("attack", [MinMax(), MinSum()])
    def test_gamma_is_the_largest_within_the_bound(self, attack: MinMax | MinSum, updates: Tensor) -> None:
        rows = updates.double()

        def spread(v: Tensor) -> float:
            distances = [float((v - row).norm()) for row in rows]
            return max(distances) if isinstance(attack, MinMax) else sum(x**2 for x in distances)

        bound = max(spread(row) for row in rows)
        mean, sigma = rows.mean(0), rows.std(0, correction=0)
        v = attack(updates, FACTS).double()
        gamma = float((mean - v) @ sigma / (sigma @ sigma))
        assert gamma > 0.1
        assert torch.allclose(v, mean - gamma * sigma, atol=1e-5)
        assert spread(v) == pytest.approx(bound, rel=1e-5)
        assert spread(mean - 1.001 * gamma * sigma) > bound > spread(mean - 0.999 * gamma * sigma)

    @pytest.mark.parametrize("attack", [MinMax(), MinSum(), Alie(strength=1.5), Adaptive(strength=0.1)])
    @pytest.mark.parametrize("rows", [torch.ones(1, 7), torch.ones(3, 7), torch.zeros(2, 7), torch.full((2, 7), 1e-20)])
    def test_without_any_spread(self, attack: MinMax, rows: Tensor) -> None:
        assert bool(torch.isfinite(attack(rows, FACTS)).all())

    @pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 1.0])
    def test_adaptive_is_the_most_harmful_of_those_that_pass(self, margin: float, updates: Tensor) -> None:
        v = Adaptive(strength=margin)(updates, FACTS)
        mean, norms = updates.mean(0), updates.norm(dim=1)
        assert float(v.norm()) == pytest.approx(float(norms.median()), rel=1e-4)
        harm, d = -updates.std(0, correction=0), mean / mean.norm()
        kept = max(margin, float(torch.cosine_similarity(harm, d, dim=0)))
        assert float(torch.cosine_similarity(v, d, dim=0)) == pytest.approx(kept, abs=1e-4)
        for other in torch.randn(200, 300, generator=rng(4)) + 3 * harm:
            across = other - (other @ d) * d
            for m in (margin, (1 + margin) / 2, 1.0):  # all that pass
                rival = v.norm() * (m * d + (1 - m**2) ** 0.5 * across / across.norm())
                assert float(rival @ harm) <= float(v @ harm) + 1e-3


class TestRoles:
    """Who attacks."""

    def test_a_fraction_drawn_from_the_seed(self) -> None:
        attack = Attack(kind="zero", fraction=0.3)
        chosen = attackers(attack, 50, 0)
        assert len(chosen) == 15
        assert chosen == attackers(Attack(kind="scale", fraction=0.3), 50, 0)
        assert chosen != attackers(attack, 50, 1)
        assert chosen < attackers(Attack(kind="zero", fraction=0.6), 50, 0)
        assert all(type(client) is int and 0 <= client < 50 for client in chosen)

    def test_explicit_ids(self) -> None:
        assert attackers(Attack(kind="zero", clients="0,3,7-9"), 10, 5) == {0, 3, 7, 8, 9}

    def test_nobody(self) -> None:
        assert attackers(Attack(fraction=0.3), 10, 0) == frozenset()

    def test_a_million_clients(self) -> None:
        started = time.thread_time()
        attack = Attack(kind="mix", fraction=0.3)
        assert len(attackers(attack, 10**6, 0)) == 300_000
        assert len(numbers(attack, 10**6, 0)) == 300_000
        first = time.thread_time() - started
        for client in range(1000):
            attackers(attack, 10**6, 0).__contains__(client)
        assert first < 5
        assert time.thread_time() - started - first < 0.5

    def test_rounds(self) -> None:
        assert [active(Attack(start=2, stop=3), number) for number in (1, 2, 3, 4)] == [False, True, True, False]
        assert active(Attack(start=2), 10**6)

    def test_mix_halves(self) -> None:
        attack = Attack(kind="mix", fraction=0.3)
        parts = {client: part_of(attack, client, 100, 7) for client in attackers(attack, 100, 7)}
        signs = [part.strength for part in parts.values() if part.kind == "sign-flip"]
        labels = [part.strength for part in parts.values() if part.kind == "label-flip"]
        assert (len(signs), len(labels)) == (15, 15)
        assert 0.1 <= min(signs) < max(signs) - 5 <= 5.1
        assert 0.1 <= min(labels) < max(labels) - 1 <= 1.1
        assert all(part == part_of(attack, client, 100, 7) for client, part in parts.items())

    def test_more_flip_signs_if_they_are_odd(self) -> None:
        attack = Attack(kind="mix", clients="0-4")
        kinds = [part_of(attack, client, 100, 7).kind for client in range(5)]
        assert (kinds.count("sign-flip"), kinds.count("label-flip")) == (3, 2)

    def test_mix_strength_multiplies(self) -> None:
        weak, strong = (Attack(kind="mix", fraction=0.5, strength=s) for s in (1.0, 3.0))
        for client in attackers(weak, 10, 0):
            assert part_of(strong, client, 10, 0).strength == 3 * float(part_of(weak, client, 10, 0).strength)

    def test_panel_of_attackers(self) -> None:
        attack = Attack(kind="alie", fraction=0.3)
        trainings = panel(attack, 3, 50, 0)
        assert len({client for client, _ in trainings}) == PANEL
        assert {client for client, _ in trainings} <= attackers(attack, 50, 0)
        assert trainings == panel(attack, 4, 50, 0)

    def test_panel_of_honest_clients(self) -> None:
        attack = Attack(kind="mimic", fraction=0.3, omniscient=True)
        trainings = panel(attack, 3, 50, 0)
        assert len(trainings) == PANEL
        assert not {client for client, _ in trainings} & attackers(attack, 50, 0)

    def test_a_lone_attacker_trains_again(self) -> None:
        again = [(6, 0), (6, 1), (6, 2), (6, 3), (6, 4)]
        assert panel(Attack(kind="alie", clients="6"), 6, 10, 0) == again
        assert panel(Attack(kind="alie"), 6, 10, 0) == again  # a real node: nobody is known

    def test_expected_attackers(self) -> None:
        assert expected_attackers(Attack(kind="alie", fraction=0.3), 50, 10, 0) == 3
        assert expected_attackers(Attack(kind="alie", clients="0-24"), 50, 10, 0) == 5
        assert expected_attackers(Attack(kind="alie"), 50, 10, 0) == 1


class TestOrders:
    """What a client is told to do, and by whom."""

    simulated = Experiment.of({"attack.kind": "scale", "attack.clients": "1", "attack.start": 2})

    def test_the_experiment_decides_in_simulation(self) -> None:
        assert orders(1, 2, self.simulated, {SIMULATED: True}) == self.simulated.attack
        assert orders(1, 2, self.simulated, {"partition-id": 1, "num-partitions": 2}) is None
        assert orders(1, 1, self.simulated, {SIMULATED: True}) is None
        assert orders(0, 2, self.simulated, {SIMULATED: True}) is None

    def test_the_node_decides_alone(self) -> None:
        assert orders(1, 2, self.simulated, {"role": "honest"}) is None
        told = orders(0, 1, self.simulated, {"role": "malicious", "attack": "sign-flip", "attack-strength": 2.5})
        assert told == Attack(kind="sign-flip", strength=2.5)

    def test_mix_on_a_real_node(self) -> None:
        kinds = {orders(i, 1, Experiment(), {"role": "malicious", "attack": "mix"}).kind for i in range(20)}  # type: ignore[union-attr]
        assert kinds == {"sign-flip", "label-flip"}

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ({"role": "evil"}, "role = 'evil'"),
            ({"role": "malicious"}, "attack = ''"),
            ({"role": "malicious", "attack": "sign-flop"}, "sign-flip"),
            ({"role": "malicious", "attack": "none"}, "attack = none"),
            ({"role": "malicious", "attack": "mimic"}, "attack = mimic"),
            ({"role": "malicious", "attack": "edge-case"}, "attack-images: not set"),
            ({"role": "malicious", "attack": "scale", "attack-strength": "much"}, "attack-strength = 'much'"),
        ],
    )
    def test_a_bad_node_config_is_refused(self, config: dict[str, str], said: str) -> None:
        with pytest.raises(UserError, match=said):
            node_orders(config)


class TestTable:
    """The table and what it refuses."""

    def test_every_attack_can_be_made_at_its_declared_strengths(self) -> None:
        assert len(attacks()) >= 14
        for kind, cls in attacks().items():
            for strength in declared(cls):
                attack = Attack(kind=kind, strength=strength, fraction=0.3 if kind != "none" else 0.0, omniscient=True)
                if not cls.needs:
                    check_attack(attack, 50, rounds=60, classes=10, shape=(1, 8, 8))
                assert cls.has_parts or make_poison(attack, FACTS)
            default = getattr(chosen(Attack(kind=kind)), "strength", None)
            assert default is None or default in declared(cls)
            assert list(pairwise(declared(cls))) == [] or strength_of(cls)

    def test_strengths(self) -> None:
        assert chosen(Attack(kind="sign-flip")) == SignFlip(strength=5.0)
        assert chosen(Attack(kind="sign-flip", strength=0.0)) == SignFlip(strength=0.0)
        assert chosen(Attack(kind="alie")) == Alie(strength=None)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            (
                {"kind": "sign-flop", "fraction": 0.3},
                "attack.kind = 'sign-flop': no such attack; did you mean sign-flip",
            ),
            ({"fraction": 0.3}, "attack.fraction = 0.3: nobody attacks with attack.kind = none"),
            ({"clients": "1-3"}, "attack.clients = 1-3: nobody attacks with attack.kind = none"),
            ({"kind": "zero", "fraction": 0.3, "clients": "1"}, "set only one"),
            ({"kind": "zero", "fraction": 0.001}, "attack.fraction = 0.001: that is less than one of task"),
            ({"kind": "mimic", "fraction": 0.3}, "attack.omniscient = true"),
            ({"kind": "zero", "fraction": 0.3, "start": 5, "stop": 4}, "attack.stop = 4: is before attack.start = 5"),
            (
                {"kind": "zero", "fraction": 0.3, "start": 61},
                "attack.start = 61: the experiment ends after rounds = 60",
            ),
            ({"kind": "zero", "fraction": 0.3, "strength": 2.0}, "attack.strength = 2: zero has none"),
            ({"kind": "backdoor", "fraction": 0.3, "strength": 2.0}, "attack.strength = 2: .* at most 1"),
            ({"kind": "backdoor", "fraction": 0.3, "target": 10}, "attack.target = 10: the task's classes are 0-9"),
        ],
    )
    def test_refused(self, settings: dict[str, object], said: str) -> None:
        with pytest.raises(UserError, match=said):
            check_attack(Attack(**settings), 50, rounds=60, classes=10)  # type: ignore[arg-type]


class TestFang:
    """Attacks on one rule, against hand-computed values and a naive Krum."""

    def test_trim_goes_three_to_four_deviations_beyond(self) -> None:
        panel = torch.tensor([[1.0, -2.0], [3.0, -4.0]])  # μ = (2, −3), σ = (1, 1)
        sent = torch.stack([FangTrim().send(panel, FACTS, rng(seed)) for seed in range(200)])
        assert -2 <= sent[:, 0].min() < -1.9 and -1.1 < sent[:, 0].max() <= -1
        assert 0 <= sent[:, 1].min() < 0.1 and 0.9 < sent[:, 1].max() <= 1

    @pytest.mark.parametrize("f", [1, 3])
    def test_krum_takes_the_longest_that_it_chooses(self, updates: Tensor, f: int) -> None:
        facts = Facts(classes=10, n=10, f=f)
        sent = FangKrum()(updates, facts)
        direction = updates.mean(0).sign()
        size = float(-(sent @ direction) / direction.square().sum())
        assert torch.allclose(sent, -size * direction) and size > 0
        assert naive_krum(torch.cat([updates, sent.expand(f, -1)]), f) >= len(updates)
        larger = (-2 * size * direction).expand(f, -1)
        is_first_try = size == pytest.approx(largest_lambda(updates, facts))
        assert is_first_try or naive_krum(torch.cat([updates, larger]), f) < len(updates)

    def test_krum_gives_up_where_nothing_helps(self) -> None:
        panel = torch.zeros(5, 4) + torch.tensor([1.0, 1.0, -1.0, 1.0])
        assert float(FangKrum()(panel, FACTS).abs().max()) <= 1e-5


def naive_krum(rows: Tensor, f: int) -> int:
    """The number of the row that Krum chooses; the last one of equals."""
    scores = []
    for number, one in enumerate(rows):
        distances = sorted(float((one - other).square().sum()) for i, other in enumerate(rows) if i != number)
        scores.append(sum(distances[: len(rows) - f - 2]))
    return max(range(len(rows)), key=lambda row: (-scores[row], row))


def largest_lambda(panel: Tensor, facts: Facts) -> float:
    """The paper's bound, term by term."""
    root = panel.shape[1] ** 0.5
    sums = []
    for number, one in enumerate(panel):
        distances = sorted(float((one - other).norm()) for i, other in enumerate(panel) if i != number)
        sums.append(sum(distances[: facts.n - facts.f - 2]))
    return min(sums) / ((len(panel) - 1) * root) + max(float(one.norm()) for one in panel) / root


@pytest.mark.parametrize("kind", [MinMax, MinSum])
@pytest.mark.parametrize("perturbation", ["std", "unit", "sign"])
def test_all_perturbations_go_as_far_as_they_may(updates: Tensor, kind: type, perturbation: str) -> None:
    mean = updates.mean(0)
    expected = {"std": -updates.std(0, correction=0), "unit": -mean / mean.norm(), "sign": -mean.sign()}[perturbation]
    sent = kind(perturbation=perturbation)(updates, FACTS)
    assert torch.nn.functional.cosine_similarity(sent - mean, expected, dim=0) > 0.9999
    squared = torch.cdist(updates, updates).square()
    away = (updates - sent).square().sum(1)
    spread, bound = (away.max(), squared.max()) if kind is MinMax else (away.sum(), squared.sum(1).max())
    assert float(spread) == pytest.approx(float(bound), rel=1e-4)


def test_jitter_makes_every_colluder_another(updates: Tensor) -> None:
    poison = Ipm(strength=0.5, jitter=0.1).poison(FACTS)
    first, second = (poison.collude(updates, rng(seed)) for seed in (1, 2))
    plain = Ipm(strength=0.5).poison(FACTS).collude(updates, rng(1))
    assert not torch.equal(first, second)
    for sent in (first, second):
        assert float((sent - plain).norm()) == pytest.approx(0.1 * float(plain.norm()), rel=1e-5)
    assert torch.equal(plain, -0.5 * updates.mean(0))


def test_who_alternates_attacks_in_every_other_period() -> None:
    attack = Attack(kind="zero", fraction=0.3, start=3, stop=12, period=2)
    assert [number for number in range(1, 15) if active(attack, number)] == [3, 4, 7, 8, 11, 12]


class TestTargetedLabels:
    """One class is classified as another."""

    def test_only_the_source_is_relabelled(self) -> None:
        labels = torch.tensor([0, 3, 5, 3])
        pixels = torch.zeros(4, 1, 2, 2)
        assert TargetedLabelFlip(source=3, target=5)(pixels, labels, FACTS)[1].tolist() == [0, 5, 5, 5]
        assert labels.tolist() == [0, 3, 5, 3]

    def test_success_is_the_share_of_the_source_that_is_mistaken(self) -> None:
        class Fixed(nn.Module):
            def forward(self, pixels: Tensor) -> Tensor:
                return nn.functional.one_hot(pixels[:, 0, 0, 0].long(), 10).float()

        pixels = torch.tensor([1.0, 5.0, 5.0, 2.0]).reshape(4, 1, 1, 1)
        found = TargetedLabelFlip(source=3, target=5).measure(Evaluated(Fixed(), pixels, torch.tensor([3, 3, 3, 3]), 2))
        assert found == {"attack_success": 0.5}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"source": 1}, "attack.target = 1: is the same as attack.source"),
            ({"source": 12}, "attack.source = 12: the task's classes are 0-9"),
            ({"target": 10}, "attack.target = 10: the task's classes are 0-9"),
        ],
    )
    def test_classes_that_cannot_be_are_refused(self, options: dict[str, int], message: str) -> None:
        attack = Attack.model_validate({"kind": "label-flip-targeted", "fraction": 0.3, **options})
        with pytest.raises(UserError) as refused:
            check_attack(attack, 50, classes=10)
        assert message in str(refused.value)
