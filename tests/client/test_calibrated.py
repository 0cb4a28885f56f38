"""Calibrated and adversarial training: the formulas, and clients that train by them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from tests.client.test_malicious import Client
from tests.federations import TINY, model_sha, run, tiny
from thistle.attacks.evasion.engine import Budget, Crafted
from thistle.attacks.roles import node_orders
from thistle.attacks.training.calibrations import (
    CALIBRATIONS,
    CalFAT,
    LogitAdjustment,
    RoBal,
    Views,
    log_prior,
    make_views,
    plain,
    prior_of,
)
from thistle.attacks.training.loss import CalibratedLoss, server_loss
from thistle.attacks.training.objectives import OBJECTIVES, Setting, adversarial_ratio, gairat, mart, trades
from thistle.client.calibrated import local_loss
from thistle.client.terms import check_training, node_terms
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import torch_rng
from thistle.experiments.runfolder import read_lines
from thistle.experiments.settings import Client as ClientSettings
from thistle.experiments.settings import Network
from thistle.tasks.augmentation import crop_and_flip
from thistle.tasks.models import build_model
from thistle.tasks.models.layers import CosineHead, DualBatchNorm, clean_statistics, head_name, penultimate
from thistle.tasks.task import cached_task, prepare_task
from thistle.tasks.training import plain_loss, to_tensors

C = 4


def logits(n: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(n, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(n: int = 6) -> Tensor:
    return torch.arange(n) % C


def setting(steps: int = 4, warm: bool = True) -> Setting:
    return Setting(Budget(0.1, 0.04, steps), torch.Generator().manual_seed(0), warm)


def client_settings(**more: Any) -> ClientSettings:
    return ClientSettings(**more)


class TestCalibrations:
    """What is made of logits."""

    def test_the_prior_is_shares_plus_delta(self) -> None:
        prior = log_prior(torch.tensor([0, 0, 0, 2]), 3, 0.01).exp()
        torch.testing.assert_close(prior, torch.tensor([0.76, 0.01, 0.26]))

    def test_calfat(self) -> None:
        prior = torch.tensor([0.5, 0.25, 0.2, 0.05], dtype=torch.float64).log()
        h = CalFAT(prior, 10.0)(logits(), labels())
        torch.testing.assert_close(
            softmax(h, 1),
            softmax(10 * logits(), 1) * prior.exp() / (softmax(10 * logits(), 1) * prior.exp()).sum(1, keepdim=True),
        )

    def test_calfats_published_code_scales_the_loss_and_crafts_with_a_tenth_of_the_prior(self) -> None:
        client = client_settings(calibration="calfat-code")
        views = make_views(client, prior_of(client, torch.tensor([0, 0, 0, 2]), C))
        counts = [3, 1, 1, 1]  # at least 1
        for row in range(len(logits())):
            for k in range(C):
                f, prior = float(logits()[row, k]), math.log(counts[k])
                assert float(views.loss(logits(), labels())[row, k]) == pytest.approx(10 * f + prior)
                assert float(views.examples(logits(), labels())[row, k]) == pytest.approx(f + 0.1 * prior)

    @pytest.mark.parametrize("class_margin", [0.0, 0.3])
    def test_robal_lifts_frequent_classes_and_asks_more_of_the_own_one(self, class_margin: float) -> None:
        """The authors' s·(cos_y − m₀ − τ_m·log(n_y/n_min)/s) + τ_b·log π_k, entry by entry."""
        shares = [0.5, 0.25, 0.2, 0.05]
        prior = torch.tensor(shares, dtype=torch.float64).log()
        found = RoBal(prior, class_margin=class_margin)(logits(), labels())
        for row, label in enumerate(labels().tolist()):
            for k in range(C):
                cosine = float(logits()[row, k]) / 10
                margin = 0.1 + class_margin * math.log(shares[k] / min(shares)) / 10 if k == label else 0.0
                assert float(found[row, k]) == pytest.approx(10 * (cosine - margin) + 1.2 * math.log(shares[k]))

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_a_uniform_prior_calibrates_nothing(self, objective: str) -> None:
        """log π is then a constant, which no softmax sees."""
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(12, C))
        pixels, prior = torch.rand(8, 3, 2, 2), log_prior(torch.arange(8) % C, C, 1e-3)
        values, gradients = [], []
        for calibration in ("none", "calfat"):
            client = client_settings(objective=objective, calibration=calibration)
            loss = CalibratedLoss(client, make_views(client, prior), setting(), adversarial_ratio(client))
            value = loss(network, pixels, torch.arange(8) % C)
            values.append(float(value.detach()))
            gradients.append(torch.autograd.grad(value, network[1].weight)[0])
        assert values[0] == pytest.approx(values[1], abs=1e-5)
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("view", [CalFAT, LogitAdjustment, RoBal])
    @pytest.mark.parametrize("objective", ["pgd", "trades", "mart", "gairat"])
    def test_gradients_of_the_calibrated_losses(self, view: Any, objective: str) -> None:
        prior = torch.tensor([0.7, 0.2, 0.09, 0.01], dtype=torch.float64).log()
        calibrated = view(prior, 1.0) if view is CalFAT else view(prior)
        minimise = OBJECTIVES[objective].minimise
        natural = logits(seed=1)
        kappa = torch.tensor([0, 1, 2, 3, 4, 4])

        def value(adversarial: Tensor, clean: Tensor) -> Tensor:
            forward = lambda x: calibrated(clean if x is natural else adversarial, labels())  # noqa: E731
            return minimise(forward, natural, Crafted(adversarial, kappa), labels(), setting())

        inputs = (logits(seed=2).requires_grad_(True), logits(seed=3).requires_grad_(True))
        assert torch.autograd.gradcheck(value, inputs)

    def test_where_it_acts(self) -> None:
        prior = torch.zeros(C)
        both = make_views(client_settings(calibration="calfat"), prior)
        assert isinstance(both.loss, CalFAT) and isinstance(both.examples, CalFAT)
        loss = make_views(client_settings(calibration="calfat", calibration_in="loss"), prior)
        assert isinstance(loss.loss, CalFAT) and loss.examples is plain
        examples = make_views(client_settings(calibration="robal", calibration_in="examples"), prior)
        assert examples.loss is plain and isinstance(examples.examples, RoBal)
        adjusted = make_views(client_settings(calibration="logit-adjust"), prior)
        assert isinstance(adjusted.loss, LogitAdjustment) and adjusted.examples is plain


class TestObjectives:
    """The formulas, by hand or by other functions of torch's."""

    def both(self, x: Tensor) -> Tensor:
        return x

    def test_trades(self) -> None:
        clean, adversarial = logits(seed=1), logits(seed=2)
        found = trades(self.both, clean, Crafted(adversarial, labels()), labels(), setting())
        divergence = kl_div(log_softmax(adversarial, 1), softmax(clean, 1), reduction="batchmean")
        torch.testing.assert_close(found, cross_entropy(clean, labels()) + 6 * divergence)

    def test_mart(self) -> None:
        clean, adversarial = logits(seed=1), logits(seed=2)
        found = mart(self.both, clean, Crafted(adversarial, labels()), labels(), setting())
        expected = 0.0
        for x, a, y in zip(softmax(clean, 1), softmax(adversarial, 1), labels().tolist(), strict=True):
            others = max(float(a[k]) for k in range(C) if k != y)
            expected += float(-a[y].log()) - float(torch.log(torch.tensor(1 - others)))
            expected += 5 * float((x * (x.log() - a.log())).sum()) * (1 - float(x[y]))
        assert float(found) == pytest.approx(expected / 6, rel=1e-5)

    def test_mart_survives_certainty(self) -> None:
        sure = (100.0 * torch.eye(C)[[1, 2]]).requires_grad_(True)
        value = mart(self.both, sure, Crafted(sure, labels(2)), labels(2), setting())
        value.backward()
        assert torch.isfinite(value) and sure.grad is not None and bool(torch.isfinite(sure.grad).all())

    def test_gairat(self) -> None:
        adversarial, kappa = logits(seed=2), torch.tensor([0, 4, 2, 1, 4, 3])
        crafted = Crafted(adversarial, kappa)
        weights = [(1 + float(torch.tanh(torch.tensor(-1 + 5 * (1 - 2 * k / 4))))) / 2 for k in kappa.tolist()]
        values = cross_entropy(adversarial, labels(), reduction="none").tolist()
        expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        assert float(gairat(self.both, adversarial, crafted, labels(), setting())) == pytest.approx(expected, rel=1e-5)
        cold = gairat(self.both, adversarial, crafted, labels(), setting(warm=False))
        torch.testing.assert_close(cold, cross_entropy(adversarial, labels()))

    def test_a_part_of_the_batch(self) -> None:
        """Ratio 0: the calibrated cross-entropy alone; between: both parts by their sizes."""
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(12, C))
        pixels, targets = torch.rand(8, 3, 2, 2), torch.arange(8) % C
        client = client_settings(objective="pgd")
        loss = lambda ratio: CalibratedLoss(client, Views(plain, plain), setting(), ratio)  # noqa: E731
        torch.testing.assert_close(loss(0.0)(network, pixels, targets), plain_loss(network, pixels, targets))
        adversarial = loss(1.0)(network, pixels[:2], targets[:2])
        mixed = loss(0.25)(network, pixels, targets)
        torch.testing.assert_close(mixed, (2 * adversarial + 6 * plain_loss(network, pixels[2:], targets[2:])) / 8)

    def test_crafting_leaves_statistics_to_the_step(self) -> None:
        """One training batch moves batch-norm statistics once, by that batch, however many steps were crafted."""
        network = build_model(Network(name="vgg8"), (1, 8, 8), C, 0)
        pixels, targets = torch.rand(6, 1, 8, 8), labels()
        client = client_settings(objective="ckl", calibration="calfat")
        loss = CalibratedLoss(client, make_views(client, torch.zeros(C)), setting(), 1.0)
        network.train()
        loss(network, pixels, targets)
        assert int(network.state_dict()["1.num_batches_tracked"]) == 1
        assert network.training and all(parameter.grad is None for parameter in network.parameters())


class TestLayers:
    """Networks fitted to a way of training."""

    def test_the_cosine_head_ignores_lengths(self) -> None:
        head = CosineHead(5, 3)
        features = torch.rand(4, 5)
        found = head(features)
        assert float(found.detach().abs().max()) <= 10 + 1e-5
        torch.testing.assert_close(found, head(7 * features))
        expected = 10 * torch.cosine_similarity(features[:, None], head.weight[None], dim=2)
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("name", ["mlp", "cnn-cifar", "vgg8", "resnet18"])
    def test_robal_gives_every_model_one(self, name: str) -> None:
        network = build_model(Network(name=name, head="cosine"), (3, 8, 8), 5, 0)
        assert isinstance(network.get_submodule(head_name(network)), CosineHead)
        assert network(torch.rand(2, 3, 8, 8)).shape == (2, 5)
        assert penultimate(network, torch.rand(3, 3, 8, 8), batch_size=2).shape[0] == 3

    def test_two_sets_of_statistics(self) -> None:
        network = build_model(Network(name="vgg8", norm="dual"), (1, 8, 8), 3, 0).train()
        duals = [module for module in network.modules() if isinstance(module, DualBatchNorm)]
        assert len(duals) == 5 and not any(isinstance(m, nn.BatchNorm2d) and m.affine for m in network.modules())
        network(torch.rand(4, 1, 8, 8))
        assert all(int(dual.adversarial.num_batches_tracked) == 1 for dual in duals)
        with clean_statistics(network):
            network(torch.rand(4, 1, 8, 8))
        assert all(int(d.clean.num_batches_tracked) == int(d.adversarial.num_batches_tracked) == 1 for d in duals)

    def test_a_dual_norm_is_a_norm(self) -> None:
        single, dual = (build_model(Network(name="vgg8", norm=norm), (1, 8, 8), 3, 0) for norm in ("single", "dual"))
        pixels = torch.rand(4, 1, 8, 8)
        for network in (single, dual):
            for module in network.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        torch.testing.assert_close(single.train()(pixels), dual.train()(pixels), atol=1e-4, rtol=1e-4)


class TestAugmentation:
    """Crops and mirror images."""

    def test_every_image_is_a_crop_of_itself(self) -> None:
        pixels = torch.rand(5, 2, 6, 6)
        padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
        found = crop_and_flip(pixels, torch.Generator().manual_seed(3))
        assert found.shape == pixels.shape
        for image, source in zip(found, padded, strict=True):
            crops = [source[:, y : y + 6, x : x + 6] for y in range(9) for x in range(9)]
            assert any(torch.equal(image, one) or torch.equal(image, one.flip(2)) for one in crops)

    def test_it_is_seeded_and_varied(self) -> None:
        pixels = torch.rand(1, 1, 6, 6).expand(40, 1, 6, 6)
        one, same, other = (crop_and_flip(pixels, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
        assert torch.equal(one, same) and not torch.equal(one, other)
        assert len({image.numpy().tobytes() for image in one}) > 20


class TestFederations:
    """Whole runs."""

    @pytest.mark.parametrize("calibration", CALIBRATIONS)
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_a_client_with_one_class_trains(self, objective: str, calibration: str) -> None:
        model = {"model.name": "vgg8"} if objective == "fedrbn" else {}
        keys = {"client.objective": objective, "client.calibration": calibration, "client.steps": 2}
        federation = Client({**TINY, **model, **keys, "task.partition": "shards", "task.shards": 1, "task.clients": 30})
        task = cached_task(federation.experiment.task, 0)
        alone = next(c for c in range(30) if len(set(task.client_images(c).labels.tolist())) == 1)
        update = federation.update(alone)
        assert bool(torch.isfinite(update).all()) and float(update.norm()) > 0

    def test_the_default_is_the_honest_client(self) -> None:
        """Bit for bit: what calibrated training would do without anything asked of it."""
        assert Client(TINY).role(3) == "honest" and Experiment.of(TINY).client.plain
        with_ratio_zero = Client({**TINY, "client.objective": "pgd", "client.adversarial-ratio": 0.0})
        assert with_ratio_zero.role(3) == "calibrated"
        torch.testing.assert_close(with_ratio_zero.update(3), Client(TINY).update(3), atol=1e-6, rtol=0)

    def test_packing_and_resuming_do_not_change_the_model(self, tmp_path: Path) -> None:
        keys = {"client.objective": "ckl", "client.calibration": "calfat", "client.augment": True, "rounds": 2}
        first = model_sha(run(tiny(tmp_path, "first", **keys)))
        assert first == model_sha(run(tiny(tmp_path, "packed", **keys, **{"runtime.workers": 1})))
        run(tiny(tmp_path, "halves", **{**keys, "rounds": 1}))
        assert first == model_sha(run(tiny(tmp_path, "halves", **keys, **{"run.resume": True})))
        other = model_sha(run(tiny(tmp_path, "weaker", **keys, **{"client.epsilon": 0.05})))
        assert other != first

    def test_attackers_train_by_the_same_objective(self, tmp_path: Path) -> None:
        keys = {"client.objective": "ckl", "client.calibration": "calfat"}
        evil = Client({**TINY, **keys, "attack.kind": "sign-flip", "attack.clients": "2", "attack.strength": 3.0})
        torch.testing.assert_close(evil.update(2), -3 * Client({**TINY, **keys}).update(2), atol=1e-5, rtol=0)
        for kind in ("label-flip", "backdoor", "alie"):
            attack = {"attack.kind": kind, "attack.fraction": 0.25, "rounds": 1}
            folder = run(tiny(tmp_path, kind, **keys, **attack))
            assert {v["verdict"] for v in read_lines(folder.verdicts)} == {"accepted"}

    def test_only_the_chosen_clients_train_adversarially(self) -> None:
        chosen = Client({**TINY, "client.objective": "pgd", "client.adversarial-clients": "0-4"})
        torch.testing.assert_close(chosen.update(7), Client(TINY).update(7), atol=1e-6, rtol=0)
        assert float((chosen.update(3) - Client(TINY).update(3)).norm()) > 0.01

    def test_fedrbn_keeps_statistics_apart(self, tmp_path: Path) -> None:
        """Everybody gets the adversarial statistics of those who train adversarially, and of nobody else."""
        from safetensors.torch import load_file

        keys = {"client.objective": "fedrbn", "model.name": "vgg8", "client.adversarial-clients": "0", "rounds": 1}
        size = {"task.clients": 3, "client.per-round": 3, "task.partition": "resample", "task.client-size": 20}
        folder = run(tiny(tmp_path, **keys, **size))
        state = load_file(folder.model)
        federation = Client({**TINY, **keys, **size})
        replies = [federation.reply(client).array_records["arrays"] for client in range(3)]
        mean = "1.adversarial.running_mean"
        torch.testing.assert_close(state[mean], torch.from_numpy(replies[0][mean].numpy().copy()))
        clean = [torch.from_numpy(reply["1.clean.running_mean"].numpy().copy()) for reply in replies]
        torch.testing.assert_close(state["1.clean.running_mean"], (clean[1] + clean[2]) / 2)

    def test_losses_are_made_anew_for_each_training(self) -> None:
        """The same work twice gives the same bits: nothing is drawn from a generator that lives on."""
        client = Client({**TINY, "client.objective": "pgd"})
        assert torch.equal(client.update(1), client.update(1))
        assert local_loss.__doc__


NODE = {"role": "calibrated", "objective": "ckl", "calibration": "calfat", "epsilon": 0.2}


class TestNodes:
    """Deployed nodes with a role of their own."""

    def test_a_calibrated_node_follows_its_own_config(self) -> None:
        submitted = {**TINY, "attack.kind": "scale", "attack.fraction": 1.0}
        keys = {"client.objective": "ckl", "client.calibration": "calfat", "client.epsilon": 0.2}
        assert torch.equal(Client(submitted, NODE).update(3), Client({**TINY, **keys}).update(3))
        assert node_orders(NODE) is None

    def test_without_keys_of_its_own_it_follows_the_experiment(self) -> None:
        keys = {**TINY, "client.objective": "pgd"}
        assert torch.equal(Client(keys, {"role": "calibrated"}).update(3), Client(keys).update(3))
        assert torch.equal(Client(keys, {"role": "honest"}).update(3), Client(keys).update(3))

    @pytest.mark.parametrize(
        ("node", "message"),
        [
            ({"objective": "pdg"}, "node config: client.objective = 'pdg'"),
            ({"objective": "pgd", "epsilon": 2.0}, "node config: client.epsilon = 2.0"),
            ({"calibration": "robal"}, "the whole federation must use them"),
            ({}, "neither the experiment nor the node names an objective"),
        ],
    )
    def test_what_cannot_work_is_refused(self, node: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError) as refused:
            node_terms(Experiment.of(TINY), {"role": "calibrated", **node})
        assert message in str(refused.value) and "\n" not in str(refused.value)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon": ({"client.epsilon": 1.5}, "client.epsilon = 1.5"),
    "no epsilon": ({"client.epsilon": 0.0}, "client.epsilon = 0.0"),
    "objective": ({"client.objective": "pdg"}, "client.objective = 'pdg'"),
    "ratio": ({"client.adversarial-ratio": 0.5}, "client.adversarial-ratio = 0.5: has no meaning with client.obj"),
    "clients": ({"client.adversarial-clients": "1"}, "client.adversarial-clients = 1: has no meaning"),
    "ids": (
        {"client.objective": "pgd", "client.adversarial-clients": "99"},
        "client.adversarial-clients = '99': '99' is outside of 0-49",
    ),
    "warmup": ({"client.objective": "pgd", "client.warmup": 3}, "client.warmup = 3: has no meaning"),
    "calibration-in": ({"client.calibration-in": "loss"}, "client.calibration-in = loss: with client.calibration = no"),
    "logit-scale": ({"client.logit-scale": 10.0}, "client.logit-scale = 10: belongs to client.calibration = calfat"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case: str) -> None:
    keys, message = REFUSED[case]
    with pytest.raises(UserError) as refused:
        check_training(Experiment.of(keys).client)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_fedrbn_needs_batch_norm() -> None:
    with pytest.raises(UserError, match=r"client\.objective = fedrbn: .* model\.name = mlp has no batch norm"):
        build_model(Experiment.of({"client.objective": "fedrbn", "model.name": "mlp"}).network, (1, 8, 8), 3, 0)


class TestServerLearning:
    """A server that learns as its clients do."""

    KEYS: ClassVar[dict[str, Any]] = {"strategy.name": "rofsl", "client.steps": 2, "rounds": 2}

    def test_its_loss_is_the_clients_on_its_own_images(self, tmp_path: Path) -> None:
        """CE of s·f + log π on examples farthest from x in s·f + log π, written out."""
        keys = {"client.objective": "ckl", "client.calibration": "calfat", "client.logit-scale": 2.0}
        experiment = tiny(tmp_path, **{**self.KEYS, **keys})
        task = prepare_task(experiment.task, experiment.seed, True)
        assert task.server_images is not None
        pixels, labels = to_tensors(task.server_images, torch.device("cpu"))
        pixels, labels = pixels[:20], labels[:20]
        network = build_model(experiment.network, task.shape, task.classes, 0).eval()
        learns_by = server_loss(experiment, task)
        assert learns_by is not None
        found = learns_by(3)(network, pixels, labels)

        every = torch.tensor(task.server_images.labels)
        shares = torch.stack([(every == k).float().mean() for k in range(task.classes)])
        view = lambda x: 2 * network(x) + (shares + 1e-3).log()  # noqa: E731
        generator = torch_rng(experiment.seed, "server-adversarial", 3)
        near, client = (pixels + 0.001 * torch.randn(pixels.shape, generator=generator)).clamp(0, 1), experiment.client
        with torch.no_grad():
            target = softmax(view(pixels), 1)
        for _ in range(2):
            near.requires_grad_(True)
            (slope,) = torch.autograd.grad(-(target * log_softmax(view(near), 1)).sum(), near)
            near = (near.detach() + client.step * slope.sign()).clamp(pixels - client.epsilon, pixels + client.epsilon)
            near = near.clamp(0, 1)
        torch.testing.assert_close(found, cross_entropy(view(near), labels), atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("objective", ["ckl", "gairat", "fedrbn", "standard"])
    def test_it_learns_so_unless_told_otherwise(self, tmp_path: Path, objective: str) -> None:
        more = {"client.objective": objective, **({"model.name": "vgg8"} if objective == "fedrbn" else {})}
        keys = {**self.KEYS, **more, "task.train-size": 40, "client.per-round": 2, "strategy.server-epochs": 1}
        clients = run(tiny(tmp_path, "clients", **keys))
        standard = run(tiny(tmp_path, "standard", **keys, **{"strategy.server-objective": "standard"}))
        assert (model_sha(clients) == model_sha(standard)) == (objective == "standard")
        assert not any("kept" in line for line in read_lines(clients.metrics))
