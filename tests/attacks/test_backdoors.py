"""Backdoors, against hand-computed values and slow versions of their formulas."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.federations import model_sha, rounds, run, tiny
from thistle.attacks.checks import check_attack
from thistle.attacks.poisoning import a3fl
from thistle.attacks.poisoning.a3fl import A3FL, similarity, unlearn
from thistle.attacks.poisoning.backdoor import Backdoor
from thistle.attacks.poisoning.constrain_and_scale import ConstrainAndScale
from thistle.attacks.poisoning.dba import DistributedBackdoor
from thistle.attacks.poisoning.edge_case import EdgeCase
from thistle.attacks.poisoning.edge_images import load_images
from thistle.attacks.poisoning.label_flip import DynamicLabelFlip
from thistle.attacks.poisoning.neurotoxin import Neurotoxin, most_moved
from thistle.attacks.poisoning.parts import Facts, Past
from thistle.attacks.poisoning.scale import ScaleWithin
from thistle.attacks.poisoning.trigger import BLEND, Trigger, make_trigger, square
from thistle.attacks.registry import Evaluated
from thistle.attacks.roles import numbers, orders, part_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Attack
from thistle.running.prepare import make_experiment

FACTS = Facts(classes=10, n=10, f=3)
GRAY = (1, 8, 8)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_model(classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes))


def images(count: int = 12, classes: int = 4) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 1, 8, 8, generator=rng(3)), torch.arange(count) % classes


class TestTriggers:
    """What is stamped."""

    def test_bars_are_the_papers_at_28_pixels(self) -> None:
        mask = make_trigger("distributed", (1, 28, 28), 0).mask[0]
        expected = [(r, c) for r in (0, 3) for start in (0, 6) for c in range(start, start + 4)]
        assert [tuple(place) for place in mask.nonzero().tolist()] == expected

    def test_bars_fit_into_small_images(self) -> None:
        mask = make_trigger("distributed", GRAY, 0).mask[0]
        assert mask.nonzero().tolist() == [[r, c] for r in (0, 2) for c in (0, 1, 3, 4)]

    def test_blend_is_a_little_of_a_pattern_of_the_seed(self) -> None:
        pixels, _ = images()
        one, other = (make_trigger("blend", GRAY, seed) for seed in (1, 2))
        expected = (1 - BLEND) * pixels + BLEND * one.pattern
        assert torch.allclose(one(pixels), expected, atol=1e-6)
        assert not torch.equal(one.pattern, other.pattern)
        assert torch.equal(one.pattern, make_trigger("blend", GRAY, 1).pattern)
        assert 0 <= float(one.pattern.min()) < 0.1 and 0.9 < float(one.pattern.max()) <= 1

    def test_a_patch_leaves_the_rest_to_the_bit(self) -> None:
        pixels = torch.rand(5, 3, 9, 9, generator=rng()).contiguous(memory_format=torch.channels_last)
        expected = pixels.clone()
        expected[..., -3:, -3:] = 1.0
        stamped = make_trigger("patch", (3, 9, 9), 0)(pixels)
        assert torch.equal(stamped, expected)
        assert stamped.is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("name", ["patch", "blend", "distributed"])
    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_parts_make_the_whole(self, name: str, count: int) -> None:
        whole = make_trigger(name, GRAY, 0)
        parts = [whole.part(number, count).mask for number in range(count)]
        assert torch.equal(torch.stack(parts).sum(0), whole.mask)
        sizes = [int((part > 0).sum()) for part in parts]
        assert max(sizes) - min(sizes) <= 1

    def test_the_parts_of_the_bars_are_the_bars(self) -> None:
        second = make_trigger("distributed", (1, 28, 28), 0).part(1, 4)
        assert second.mask[0].nonzero().tolist() == [[0, column] for column in (6, 7, 8, 9)]

    @pytest.mark.parametrize("name", ["patch", "blend", "distributed"])
    def test_every_backdoor_stamps_the_chosen_one_and_is_measured_by_it(self, name: Any) -> None:
        pixels, labels = images()
        backdoor = Backdoor(trigger=name, strength=1.0, target=2)
        stamped, wanted = backdoor(pixels, labels, Facts(4, 10, 3, seed=5))
        assert set(wanted.tolist()) == {2}
        seen: list[Tensor] = []

        class Looks(nn.Module):
            def forward(self, given: Tensor) -> Tensor:
                seen.append(given)
                return torch.zeros(len(given), 4)

        backdoor.measure(Evaluated(Looks(), pixels, labels, 100, seed=5))
        assert torch.equal(seen[0], stamped[labels != 2])


class TestDistributed:
    """DBA: who stamps what."""

    def test_attacker_i_stamps_part_i_mod_k(self) -> None:
        attack = Attack(kind="dba", fraction=0.3)
        who = numbers(attack, 20, 7)
        assert len(who) == 6
        for client, number in who.items():
            assert part_of(attack, client, 20, 7).options["own_part"] == number % 4

    def test_only_its_part_is_stamped(self) -> None:
        dba = DistributedBackdoor(own_part=2, strength=1.0)
        stamped, _ = dba(torch.zeros(2, *GRAY), torch.zeros(2, dtype=torch.long), FACTS)
        assert stamped[0, 0].nonzero().tolist() == [[2, 0], [2, 1]]

    def test_success_is_that_of_the_whole(self) -> None:
        whole = make_trigger("distributed", GRAY, 0)(torch.zeros(1, *GRAY))[0]

        class Whole(nn.Module):
            def forward(self, pixels: Tensor) -> Tensor:
                return nn.functional.one_hot((pixels == whole).flatten(1).all(1).long(), 3).float()

        shown = Evaluated(Whole(), torch.zeros(4, *GRAY), torch.tensor([0, 0, 1, 2]), 2)
        assert DistributedBackdoor(target=1).measure(shown) == {"attack_success": 1.0}
        assert Backdoor(target=1).measure(shown) == {"attack_success": 0.0}

    def test_a_lone_node_draws_its_part_or_is_told(self) -> None:
        node = {"role": "malicious", "attack": "dba"}
        drawn = [orders(client, 1, Experiment(), node).options["own_part"] for client in range(30)]  # type: ignore[union-attr]
        assert set(drawn) == {0, 1, 2, 3}
        told = orders(3, 1, Experiment(), {**node, "attack-own-part": 1})
        assert told is not None and told.options["own_part"] == 1


class TestNeurotoxin:
    """What is spared."""

    past = Past(torch.tensor([1.0, -5.0, 2.0, 0.0, 3.0]), before=torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))

    def test_the_coordinates_that_moved_most(self) -> None:
        mask = most_moved(self.past, 0.4)
        assert mask is not None and mask.tolist() == [False, True, False, False, True]
        everything = most_moved(self.past, 1.0)
        assert everything is not None and everything.tolist() == [False, True, True, False, True]

    def test_they_are_not_sent(self) -> None:
        sent = Neurotoxin(spared=0.4).send(torch.ones(5), self.past, rng())
        assert sent.update.tolist() == [1, 0, 1, 1, 0]

    def test_nothing_is_spared_the_first_time(self) -> None:
        first = Past(torch.ones(5))
        assert most_moved(first, 0.4) is None
        assert Neurotoxin(spared=0.4).send(torch.ones(5), first, rng()).update.tolist() == [1] * 5


class TestA3FL:
    """The search for a trigger."""

    def test_unlearning_is_sgd_on_stamped_images_with_true_labels(self) -> None:
        pixels, labels = images(8)
        theta = small_model().eval()
        trigger = square(GRAY, 3, 0.5)
        expected = copy.deepcopy(theta)
        optimiser = torch.optim.SGD(expected.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        order = rng(1)
        for _ in range(5):
            rows = torch.randperm(8, generator=order)
            optimiser.zero_grad()
            nn.functional.cross_entropy(expected(trigger(pixels)[rows]), labels[rows]).backward()
            optimiser.step()
        found = unlearn(theta, trigger, pixels, labels, rng(1))
        for one, other in zip(found.parameters(), expected.parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-7)

    def test_similarity_is_a_cosine(self) -> None:
        one, other = nn.Linear(1, 2), nn.Linear(1, 2)
        with torch.no_grad():
            for model, values in ((one, [3.0, 0.0, 0.0, 4.0]), (other, [0.0, 0.0, 0.0, 2.0])):
                model.weight.copy_(torch.tensor(values[:2]).reshape(2, 1))
                model.bias.copy_(torch.tensor(values[2:]))
        assert similarity(one, other) == pytest.approx(0.8)

    def test_one_pass_is_a_signed_step_towards_the_target(self) -> None:
        pixels, labels = images(8)
        model = small_model().eval()
        gray = square(GRAY, 3, 0.5)
        pattern = gray.pattern.clone().requires_grad_()
        mixed = gray.mask * pattern + (1 - gray.mask) * pixels
        nn.functional.cross_entropy(model(mixed), torch.full((8,), 2)).backward()
        assert pattern.grad is not None
        expected = 0.5 - 0.01 * pattern.grad.sign()
        found = A3FL(target=2, passes=1).search(model, gray, pixels, labels, rng())
        assert torch.allclose(found.pattern, expected)
        assert float((found.pattern - 0.5).abs().sum()) == pytest.approx(0.09, abs=1e-5)

    def test_a_found_trigger_works_better_and_the_model_stays(self) -> None:
        pixels, labels = images(40)
        model = small_model()
        before = copy.deepcopy(model.state_dict())
        attack = A3FL(target=2, passes=60, side=4)
        aimed = attack.aim(model, pixels, labels, Past(torch.zeros(1)), rng())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())

        def loss(notes: dict[str, Tensor]) -> float:
            shown = attack.whole(Evaluated(model, pixels, labels, 10, notes=notes))(pixels)
            return nn.functional.cross_entropy(model.eval()(shown), torch.full((40,), 2)).item()

        assert loss(dict(aimed.notes)) < loss({}) - 0.05
        again = attack.aim(model, pixels, labels, Past(torch.zeros(1), notes=aimed.notes), rng())
        assert loss(dict(again.notes)) < loss(dict(aimed.notes))

    @pytest.mark.parametrize("weight", [0.3, 3.0])
    def test_the_adapted_model_counts(self, weight: float) -> None:
        pixels, _ = images(8)
        theta, adapted, gray = small_model().eval(), small_model().eval(), square(GRAY, 3, 0.5)
        with torch.no_grad():
            adapted[4].weight.neg_()
        pattern = gray.pattern.clone().requires_grad_()
        mixed, wanted = gray.mask * pattern + (1 - gray.mask) * pixels, torch.full((8,), 2)
        alone, other = (nn.functional.cross_entropy(model(mixed), wanted) for model in (theta, adapted))
        (both,) = torch.autograd.grad(alone + weight * other, pattern, retain_graph=True)
        (first,) = torch.autograd.grad(alone, pattern)
        found = A3FL(target=2)._improved(gray, pixels, theta, adapted, weight)
        assert torch.allclose(found.pattern, 0.5 - 0.01 * both.sign())
        assert torch.equal(both.sign(), first.sign()) == (weight < 1)

    def test_it_is_unlearnt_anew_every_few_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Tensor] = []
        original = a3fl.unlearn

        def noted(theta: nn.Module, trigger: Trigger, *rest: Any) -> nn.Module:
            made.append(trigger.pattern)
            return original(theta, trigger, *rest)

        monkeypatch.setattr(a3fl, "unlearn", noted)
        pixels, labels = images(8)
        A3FL(passes=12).search(small_model(), square(GRAY, 3, 0.5), pixels, labels, rng())
        assert len(made) == 2 and not torch.equal(*made)
        A3FL(passes=12, adaptation=0.0).search(small_model(), square(GRAY, 3, 0.5), pixels, labels, rng())
        assert len(made) == 2

    def test_the_server_measures_with_what_attackers_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[dict[str, Tensor]] = []
        original = A3FL.whole
        monkeypatch.setattr(A3FL, "whole", lambda self, shown: seen.append(dict(shown.notes)) or original(self, shown))
        keys = {"attack.kind": "a3fl", "attack.clients": "0-11", "attack.stop": 2}
        lines = rounds(run(tiny(tmp_path, "run", **keys)))
        patterns = [notes["pattern"] for notes in seen]
        assert len(patterns) == 2 and float((patterns[0] - 0.5).abs().max()) > 0.1
        assert torch.equal(*patterns)  # after the last attack it is still known
        assert all(0 <= line["attack_success"] <= 1 for line in lines if "attack_success" in line)


class TestConstrainAndScale:
    """Loss, γ and the ball."""

    def test_the_loss_by_hand(self) -> None:
        model = nn.Linear(2, 1, bias=True)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[3.0, 1.0]]))
            model.bias.copy_(torch.tensor([4.0]))
        came = {"weight": torch.tensor([[0.0, 1.0]]), "bias": torch.tensor([0.0])}
        loss = ConstrainAndScale(alpha=0.75).constrained(torch.tensor(2.0), model, came)
        assert loss.item() == pytest.approx(0.75 * 2 + 0.25 * 5)
        loss.backward()
        assert model.weight.grad is not None
        assert torch.allclose(model.weight.grad, 0.25 * torch.tensor([[3 / 5, 0.0]]))

    def test_the_first_step_has_a_gradient(self) -> None:
        model = nn.Linear(2, 1)
        came = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        ConstrainAndScale().constrained(model.weight.sum(), model, came).backward()
        assert model.weight.grad is not None and torch.allclose(model.weight.grad, torch.full((1, 2), 0.9))

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [({}, 10 / 3), ({"boost": 2.0}, 2.0), ({"boost": 4.0, "radius": 10.0}, 2.0), ({"radius": 50.0}, 10 / 3)],
    )
    def test_what_is_sent(self, settings: dict[str, float], expected: float) -> None:
        update = ConstrainAndScale(**settings).poison(FACTS).update
        assert update is not None
        own = torch.tensor([3.0, 4.0])
        assert torch.allclose(update(own, rng()), expected * own)

    def test_an_empty_update_stays_one(self) -> None:
        assert ScaleWithin(5.0, 1.0)(torch.zeros(3), rng()).tolist() == [0, 0, 0]


def test_dynamic_flips_go_by_the_model_that_came() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    pixels, labels = images(6, 3)
    expected = [int(row.argmin()) for row in model(pixels)]
    aimed = DynamicLabelFlip().aim(model, pixels, labels, Past(torch.zeros(1)), rng())
    with torch.no_grad():
        model[1].bias.add_(torch.tensor([-100.0, 0.0, 0.0]))
    same, flipped = aimed.data(pixels, labels)
    assert same is pixels
    assert flipped.tolist() == expected != [0] * 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven pictures, each of one brightness, in natural order."""
    place = tmp_path / "rare"
    place.mkdir()
    for number in range(11):
        Image.fromarray(np.full((6, 5), 10 * number, np.uint8)).save(place / f"picture{number}.png")
    (place / ".hidden").write_text("no picture")
    return place


class TestEdgeCase:
    """Rare images from a folder."""

    def test_every_fifth_is_held_out(self, folder: Path) -> None:
        found = load_images(str(folder), GRAY)
        assert found.taught.shape == (9, 1, 8, 8)
        assert (found.held[:, 0, 0, 0] * 25.5).round().tolist() == [4, 9]
        assert (found.taught[:, 0, 0, 0] * 25.5).round().tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10]

    def test_an_npz_file_may_say_which(self, tmp_path: Path) -> None:
        path = tmp_path / "rare.npz"
        np.savez(path, x_train=np.full((3, 8, 8), 7, np.uint8), x_test=np.full((2, 8, 8), 9, np.uint8))
        found = load_images(str(path), (3, 8, 8))
        assert found.taught.shape == (3, 3, 8, 8) and found.held.shape == (2, 3, 8, 8)
        assert float(found.held[0, 0, 0, 0]) == pytest.approx(9 / 255)

    def test_the_first_images_of_a_batch_are_replaced(self, folder: Path) -> None:
        aimed = EdgeCase(images=str(folder), target=3, strength=0.25).poison(FACTS).aim
        assert aimed is not None
        pixels, labels = torch.full((8, *GRAY), 2.0), torch.zeros(8, dtype=torch.long)
        data = aimed(nn.Identity(), pixels, labels, Past(torch.zeros(1)), rng()).data
        mixed, wanted = data(pixels, labels)
        assert wanted.tolist() == [3, 3, 0, 0, 0, 0, 0, 0]
        assert (mixed[:2] <= 1).all() and (mixed[2:] == 2).all()
        assert not torch.equal(data(pixels, labels)[0][:2], data(pixels, labels)[0][:2])

    def test_success_is_that_of_the_held_out_ones(self, folder: Path) -> None:
        class Bright(nn.Module):
            def forward(self, pixels: Tensor) -> Tensor:
                return nn.functional.one_hot((pixels[:, 0, 0, 0] > 0.2).long(), 2).float()

        shown = Evaluated(Bright(), torch.zeros(1, *GRAY), torch.zeros(1), 10)
        assert EdgeCase(images=str(folder), target=1).measure(shown) == {"attack_success": 0.5}

    def test_it_runs_resumes_and_keeps_its_path(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        keys = {"attack.kind": "edge-case", "attack.fraction": 0.5, "attack.images": "rare"}
        made = make_experiment(keys)
        assert made.attack.options["images"] == str(folder)
        keys["attack.images"] = str(folder)
        first = run(tiny(tmp_path, "first", **keys))
        assert "attack_success" in rounds(first)[-1]
        assert model_sha(first) == model_sha(run(tiny(tmp_path, "packed", **keys, **{"runtime.workers": 1})))
        run(tiny(tmp_path, "halves", **keys, **{"rounds": 2}))
        assert model_sha(first) == model_sha(run(tiny(tmp_path, "halves", **keys, **{"run.resume": True})))

    def test_what_is_no_image_is_named(self, folder: Path) -> None:
        (folder / "notes.txt").write_text("hello")
        with pytest.raises(UserError, match=r"^attack\.images: .*unreadable image 'notes\.txt'"):
            check_attack(attack(kind="edge-case", images=str(folder)), 50, classes=10, shape=GRAY)

    def test_nothing_is_unpickled(self, tmp_path: Path) -> None:
        path = tmp_path / "evil.npz"
        np.savez(path, x_train=np.array([{"a": 1}], dtype=object))
        with pytest.raises(UserError, match=r"^attack\.images: .*not a readable npz archive"):
            check_attack(attack(kind="edge-case", images=str(path)), 50, classes=10, shape=GRAY)


def attack(**settings: Any) -> Attack:
    return Attack.model_validate({"fraction": 0.3, **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "backdoor", "trigger": "patches"}, "attack.trigger = 'patches': should be 'patch', 'blend' or"),
        ({"kind": "neurotoxin", "target": 10}, "attack.target = 10: the task's classes are 0-9"),
        ({"kind": "a3fl", "target": 10}, "attack.target = 10: the task's classes are 0-9"),
        ({"kind": "a3fl", "side": 8}, "attack.side = 8: images have 8×8 pixels"),
        ({"kind": "a3fl", "trigger": "blend"}, "attack.trigger = blend: a3fl has no such setting"),
        ({"kind": "dba", "parts": 9}, "attack.parts = 9: the trigger distributed has only 8 pixels"),
        ({"kind": "dba", "parts": 10, "trigger": "patch"}, "attack.parts = 10: the trigger patch has only 9 pixels"),
        ({"kind": "dba", "parts": 1}, "attack.parts = 1: should be greater than or equal to 2"),
        ({"kind": "dba", "own_part": 4}, "attack.own-part = 4: attack.parts = 4 are numbered from 0"),
        ({"kind": "neurotoxin", "spared": 1.5}, "attack.spared = 1.5: should be less than or equal to 1"),
        ({"kind": "edge-case"}, "attack.images: not set; name a folder"),
        ({"kind": "edge-case", "images": "/no/such"}, "attack.images = /no/such: no such folder or .npz file"),
        ({"kind": "edge-case", "images": "/"}, "attack.images = /: has "),
    ],
)
def test_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        check_attack(attack(**settings), 50, rounds=60, classes=10, shape=GRAY)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
