"""Attacks that go by earlier rounds: their formulas, and what they write down."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from thistle.attacks.poisoning.free_rider import FreeRider
from thistle.attacks.poisoning.parts import Facts, Past
from thistle.attacks.poisoning.poisoned_fl import PoisonedFL, follows
from thistle.attacks.roles import node_orders
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment

OWN = torch.tensor([1.0, -2.0, 3.0, 0.5])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def facts(number: int, seed: int = 0) -> Facts:
    return Facts(10, 4, 1, number=number, seed=seed)


class TestPoisonedFL:
    start = torch.tensor([0.1, 0.2, 0.3, 0.4])

    def first(self, number: int = 1) -> dict[str, Tensor]:
        return dict(PoisonedFL()(OWN, Past(self.start), facts(number), rng()).notes)

    def test_it_begins_with_honest_updates(self) -> None:
        sent = PoisonedFL()(OWN, Past(self.start), facts(1), rng())
        assert torch.equal(sent.update, OWN)
        assert float(sent.notes["c"]) == 8.0

    def test_the_formula(self) -> None:
        """g = (3, 4, 0, 0) and m = (0, 5, 0, 12): |g − m·5/13| = (3, 27/13, 0, 60/13), sent with length 8·5."""
        model = self.start + torch.tensor([3.0, 4.0, 0.0, 0.0])
        past = Past(model, self.start, torch.tensor([0.0, 5.0, 0.0, 12.0]), self.first())
        update = PoisonedFL()(OWN, past, facts(2), rng()).update.double().numpy()
        expected = np.array([3.0, 27 / 13, 0.0, 60 / 13])
        assert np.allclose(np.abs(update), 40 * expected / np.sqrt((expected**2).sum()), rtol=1e-5)

    def test_the_signs_are_the_same_in_every_round_and_for_every_attacker(self) -> None:
        size = 1000
        before, sent = torch.zeros(size), torch.randn(size, generator=rng(1))
        notes = dict(PoisonedFL()(sent, Past(before), facts(1), rng()).notes)

        def signs(step: int, seed: int = 0) -> Tensor:
            model = torch.randn(size, generator=rng(step))
            past = Past(model, before, sent, notes)
            return PoisonedFL()(sent, past, facts(2, seed), rng(step)).update.sign()

        assert torch.equal(signs(2), signs(3))
        assert 400 < int((signs(2) > 0).sum()) < 600
        assert not torch.equal(signs(2), signs(2, seed=1))

    @pytest.mark.parametrize(("number", "c"), [(50, 8.0), (51, 5.6)])
    def test_c_shrinks_when_a_test_is_due_and_the_model_does_not_follow(self, number: int, c: float) -> None:
        change = torch.randn(2000, generator=rng(2))
        first = PoisonedFL()(change, Past(torch.zeros(2000)), facts(1), rng())
        past = Past(change, torch.zeros(2000), change, dict(first.notes))
        sent = PoisonedFL()(change, past, facts(number), rng())
        assert float(sent.notes["c"]) == pytest.approx(c)
        assert torch.equal(sent.notes["anchor"], change if number == 51 else torch.zeros(2000))
        assert float(sent.update.norm()) == pytest.approx(c * float(change.norm()), rel=1e-4)

    def test_c_stays_while_the_model_follows_and_has_an_end(self) -> None:
        size = 2000
        zero, sent = torch.zeros(size), torch.randn(size, generator=rng(3))
        notes = dict(PoisonedFL()(sent, Past(zero), facts(1), rng()).notes)
        signs = PoisonedFL()(sent, Past(sent, zero, zero, notes), facts(2), rng()).update.sign()
        follower = Past(0.1 * signs, zero, sent, notes)
        assert float(PoisonedFL()(sent, follower, facts(51), rng()).notes["c"]) == 8.0
        small = {**notes, "c": torch.tensor(0.6)}
        stubborn = Past(-0.1 * signs, zero, sent, small)
        assert float(PoisonedFL()(sent, stubborn, facts(51), rng()).notes["c"]) == pytest.approx(0.6)

    def test_the_sign_test_has_the_binomial_quantile(self) -> None:
        """Of 10,000 fair coins, 5,116 heads or fewer are seen 99 times in 100: ½·10⁴ + 2.326·½·10²."""
        signs = torch.ones(10_500)
        for agreeing, expected in ((5_116, False), (5_117, True)):
            change = torch.cat([torch.ones(agreeing), -torch.ones(10_000 - agreeing), torch.zeros(500)])
            assert follows(change, signs) is expected
        assert follows(torch.zeros(5), torch.ones(5)) is False


class TestFreeRider:
    model = torch.tensor([1.0, 2.0, 3.0, 4.0])
    before = torch.tensor([1.0, 1.0, 1.0, 1.0])

    def test_the_last_step_with_noise_that_fades(self) -> None:
        """The step (0, 1, 2, 3) has σ = √1.25; in round 4 the noise has a quarter of twice that."""
        noise = torch.randn(4, generator=rng(7))
        sent = FreeRider(strength=2.0)(OWN, Past(self.model, self.before, OWN), facts(4), rng(7))
        assert torch.allclose(sent.update, torch.tensor([0.0, 1.0, 2.0, 3.0]) + 2 * math.sqrt(1.25) / 4 * noise)
        assert float(sent.notes["sigma"]) == pytest.approx(math.sqrt(1.25))

    def test_sigma_is_that_of_the_first_step(self) -> None:
        past = Past(self.model, self.before, OWN, {"sigma": torch.tensor(0.5)})
        sent = FreeRider(decay=0.0, replay=False)(OWN, past, facts(9), rng(7))
        assert torch.allclose(sent.update, 0.5 * torch.randn(4, generator=rng(7)))

    def test_before_it_knows_a_step_it_sends_a_little_noise(self) -> None:
        sent = FreeRider()(OWN, Past(self.model), facts(1), rng(7))
        assert torch.allclose(sent.update, 1e-3 * torch.randn(4, generator=rng(7)))
        assert not sent.notes


def test_bad_settings_are_refused_in_one_line() -> None:
    from thistle.attacks.registry import chosen

    for keys, message in (
        ({"attack.kind": "poisoned-fl", "attack.every": 0}, "attack.every = 0"),
        ({"attack.kind": "free-rider", "attack.decay": -1.0}, "attack.decay = -1"),
        ({"attack.kind": "free-rider", "attack.every": 5}, "attack.every"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            chosen(Experiment.of({"attack.fraction": 0.3, **keys}).attack)
        assert "\n" not in str(caught.value)


def test_real_nodes_can_remember() -> None:
    for kind in ("poisoned-fl", "free-rider"):
        found = node_orders({"role": "malicious", "attack": kind})
        assert found is not None and found.kind == kind
