"""Adversarial examples: the engine against closed forms, bounds and other people's code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as mean_cross_entropy

from tests.federations import run, tiny
from thistle.attacks.evasion import measure
from thistle.attacks.evasion.engine import Budget, anywhere, at_rest, craft, nearby
from thistle.attacks.evasion.losses import cross_entropy, margin, soft_cross_entropy
from thistle.attacks.evasion.measure import Adversary, share, share_by_class, survivors
from thistle.attacks.evasion.table import EVASIONS, Evasion, find, parse_attacks
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.tasks.models import build_model, predict
from thistle.tasks.task import cached_task
from thistle.tasks.training import to_tensors

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(width: int = 12, classes: int = 3) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, classes))


def images(n: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 3, 2, 2, generator=generator(1)), torch.randint(classes, (n,), generator=generator(2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Tensor, Tensor]:
    """A CNN that a small federation trained on digits, in eval mode, with the test set."""
    keys = {"model.name": "cnn-cifar", "model.dropout": False, "client.lr": 0.2, "rounds": 6, "task.alpha": 100.0}
    experiment = tiny(tmp_path_factory.mktemp("trained"), **keys, **{"client.epochs": 4, "client.batch-size": 10})
    folder = run(experiment)
    task = cached_task(experiment.task, experiment.seed)
    network = build_model(experiment.network, task.shape, task.classes, 0)
    network.load_state_dict(load_file(folder.model))
    pixels, labels = to_tensors(task.dataset.test, CPU)
    return network.eval(), pixels, labels


def attacked(network: nn.Module, pixels: Tensor, labels: Tensor, name: str, epsilon: float = 0.1) -> float:
    return share(survivors(network, pixels, labels, name, Adversary(epsilon, None, 0, 100)))


def test_fgsm_is_the_closed_form_on_a_linear_model() -> None:
    """∇_x CE = Wᵀ(p − e_y), so x' = clip(x + ε sign Wᵀ(p − e_y))."""
    network, (pixels, labels) = linear(), images()
    weight, bias = network[1].weight.detach(), network[1].bias.detach()  # type: ignore[index]
    p = torch.softmax(pixels.flatten(1) @ weight.T + bias, 1)
    p[torch.arange(len(labels)), labels] -= 1
    expected = (pixels + 0.1 * (p @ weight).sign().reshape(pixels.shape)).clamp(0, 1)
    found = craft(network, pixels, labels, cross_entropy, Budget(0.1, 0.1, 1)).pixels
    torch.testing.assert_close(found, expected)


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.001, 1.0), st.floats(0.001, 1.0), st.integers(1, 6), st.booleans(), st.integers(0, 99), st.booleans()
)
def test_nothing_leaves_the_ball_or_the_unit_interval(
    epsilon: float, step: float, steps: int, random: bool, seed: int, until_broken: bool
) -> None:
    network, (pixels, labels) = linear(), images()
    start = anywhere(pixels, epsilon, generator(seed)) if random else nearby(pixels, generator(seed), spread=1.0)
    budget = Budget(epsilon, step, steps)
    found = craft(network, pixels, labels, margin, budget, start, until_broken=until_broken).pixels
    assert float((found - pixels).abs().max()) <= epsilon + 1e-6
    assert float(found.min()) >= 0 and float(found.max()) <= 1


def test_more_steps_find_a_higher_loss_on_average(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    network, pixels, labels = trained
    start = anywhere(pixels, 0.1, generator())
    values = []
    for steps in (1, 2, 4, 8, 16):
        found = craft(network, pixels, labels, cross_entropy, Budget(0.1, 0.025, steps), start).pixels
        values.append(float(mean_cross_entropy(network(found), labels).detach()))
    assert values == sorted(values) and values[-1] > 1.5 * values[0]


def test_attacks_order_as_they_should(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    network, pixels, labels = trained
    names = ("natural", "fgsm", "pgd20", "bim", "cw")
    natural, fgsm, pgd, bim, cw = (attacked(network, pixels, labels, name) for name in names)
    assert natural > 0.85
    assert natural > fgsm >= pgd - 0.01 and abs(pgd - bim) < 0.03 and abs(pgd - cw) < 0.1
    assert attacked(network, pixels, labels, "pgd20", 1e-6) == pytest.approx(natural)
    assert pgd == attacked(network, pixels, labels, "pgd20"), "the same seed finds the same"


def test_parameters_and_statistics_are_left_alone() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    pixels, labels = images()
    network.train()
    with at_rest(network):
        assert not network.training
        craft(network, pixels, labels, cross_entropy, Budget(0.1, 0.05, 3))
    assert network.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_a_divergence_from_itself_needs_a_start_beside_it() -> None:
    network, (pixels, labels) = linear(), images()
    loss = soft_cross_entropy(torch.softmax(network(pixels), 1))
    point = pixels.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(loss(network(point), labels).sum(), point)
    assert float(gradient.abs().max()) < 1e-6
    found = craft(network, pixels, labels, loss, Budget(0.1, 0.05, 4), nearby(pixels, generator())).pixels
    assert float((found - pixels).abs().max()) == pytest.approx(0.1, abs=1e-6)


def test_margin_is_above_zero_where_an_image_is_broken() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 0.0]])
    assert margin(logits, torch.tensor([1, 1])).tolist() == [-1.0, 4.0]


def test_what_is_broken_is_not_attacked_again() -> None:
    calls: list[int] = []

    def forward(pixels: Tensor) -> Tensor:
        calls.append(len(pixels))
        return torch.stack([0.5 - pixels.flatten(1)[:, 0], torch.zeros(len(pixels))], 1)

    pixels = torch.tensor([0.9, 0.49, 0.45, 0.1]).reshape(4, 1, 1, 1)
    labels = torch.zeros(4, dtype=torch.int64)
    found = craft(forward, pixels, labels, margin, Budget(0.1, 0.03, 4), until_broken=True)
    assert calls == [4, 3, 2, 1]
    torch.testing.assert_close(found.pixels.flatten(), torch.tensor([0.9, 0.52, 0.51, 0.2]))


def test_kappa_counts_the_points_before_the_first_mistake() -> None:
    forward = lambda pixels: torch.stack([0.5 - pixels.flatten(1)[:, 0], torch.zeros(len(pixels))], 1)  # noqa: E731
    pixels = torch.tensor([0.9, 0.49, 0.45, 0.1]).reshape(4, 1, 1, 1)
    labels = torch.zeros(4, dtype=torch.int64)
    assert craft(forward, pixels, labels, margin, Budget(0.1, 0.03, 4)).kappa.tolist() == [0, 1, 2, 4]


def test_memory_format_is_kept() -> None:
    pixels, labels = images()
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    for start in (None, anywhere(pixels, 0.1, generator())):
        found = craft(linear(), pixels, labels, cross_entropy, Budget(0.1, 0.05, 2), start).pixels
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_shares_by_class() -> None:
    right, labels = torch.tensor([True, False, True, True]), torch.tensor([0, 0, 2, 2])
    assert share(right) == 0.75 and share_by_class(right, labels, 3) == [0.5, None, 1.0]


def test_names() -> None:
    assert parse_attacks("k", " natural, fgsm,fgsm,pgd7") == ["natural", "fgsm", "pgd7"]
    assert parse_attacks("k", "") == []
    assert find("pgd20") == Evasion("20 steps of ε/4 from a random point", "Madry et al. 2018", 20, start="uniform")
    assert {name: (row.steps, row.quarter, row.best) for name, row in EVASIONS.items()} == {
        "fgsm": (1, False, False),
        "bim": (20, True, False),
        "cw": (30, True, True),
        "pgd20": (20, True, False),
    }
    for wrong in ("pgd", "pgd0", "pgd5000", "nonsense"):
        with pytest.raises(UserError, match=f"evaluate.attacks = '{wrong}': no attack is called '{wrong}'"):
            parse_attacks("evaluate.attacks", wrong)


def test_autoattack_absent_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"aa needs AutoAttack, an optional extra: pip install 'thistle-fl\[autoat"):
        parse_attacks("--attacks", "natural,aa")


def test_autoattack_is_at_least_as_strong(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    pytest.importorskip("pyautoattack", reason="the extra autoattack is not installed")
    network, pixels, labels = trained
    few = slice(0, 20)
    found = attacked(network, pixels[few], labels[few], "aa", 0.05)
    assert found <= min(attacked(network, pixels[few], labels[few], name, 0.05) for name in ("pgd20", "cw"))


def test_pgd_agrees_with_a_library(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    torchattacks = pytest.importorskip("torchattacks", reason="torchattacks is not installed beside Flower")
    network, pixels, labels = trained
    theirs = torchattacks.PGD(network, eps=0.1, alpha=0.025, steps=20, random_start=True)
    right = predict(network, theirs(pixels, labels)).argmax(1) == labels
    assert abs(share(right) - attacked(network, pixels, labels, "pgd20")) <= 0.01


def test_attacks_during_training_are_recorded(tmp_path: Path) -> None:
    from tests.federations import rounds
    from thistle.experiments.runfolder import read_json

    settings_ = {"evaluate.attacks": "natural,fgsm,pgd5", "evaluate.attack-samples": 40, "evaluate.window": 2}
    folder = run(tiny(tmp_path, **settings_))
    lines = [line["robust"] for line in rounds(folder) if "robust" in line]
    assert len(lines) == 2 and all(set(line) == {"natural", "fgsm", "pgd5"} for line in lines)
    assert all(0 <= line["pgd5"] <= line["natural"] and round(line["fgsm"] * 40, 6) % 1 == 0 for line in lines)
    assert read_json(folder.summary)["final_robust"] == lines[-1], "the other is not in the last quarter of the rounds"


def test_measuring_does_not_change_the_model(tmp_path: Path) -> None:
    from tests.federations import model_sha

    plain = model_sha(run(tiny(tmp_path, "plain", rounds=2)))
    assert plain == model_sha(run(tiny(tmp_path, "measured", rounds=2, **{"evaluate.attacks": "fgsm,pgd20,cw"})))


def test_an_unknown_attack_is_refused_before_the_start() -> None:
    from thistle.attacks.evasion.table import check_evaluation

    with pytest.raises(UserError, match=r"evaluate\.attacks"):
        check_evaluation(Experiment.of({"evaluate.attacks": "fgms"}).evaluate)


def test_autoattack_refuses_too_few_classes() -> None:
    pytest.importorskip("pyautoattack", reason="the extra autoattack is not installed")
    with pytest.raises(UserError, match="at least 4 classes"):
        measure.survivors(linear(), *images(), "aa", Adversary(0.1, None, 0, 8))


def _trained(width: int = 6, shape: tuple[int, ...] = ()) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model of rows (or of anything that flattens to them) and data that it gets right."""
    torch.manual_seed(0)
    x = torch.randn(200, width)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, x.reshape(200, *(shape or (width,))), y


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd", "cw"])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_public_attacks_work_on_any_module(name: str, shape: tuple[int, ...]) -> None:
    from thistle.attacks import evasion

    model, x, y = _trained(shape=shape)
    model[3].eval()
    model.train()
    model[2].eval()  # a frozen batch norm in a model that trains
    before = {key: value.clone() for key, value in model.state_dict().items()}
    made = getattr(evasion, name)(model, x, y, epsilon=0.5, bounds=None, **({} if name == "fgsm" else {"step": 0.125}))
    assert made.shape == x.shape and float((made - x).abs().max()) <= 0.5 + 1e-6
    assert model.training and not model[2].training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        clean, attacked = ((model(inputs).argmax(1) == y).float().mean() for inputs in (x, made))
    assert clean > 0.9 and attacked < clean - 0.1


def test_public_attacks_stay_within_bounds_and_refuse_nonsense() -> None:
    from thistle.attacks.evasion import pgd

    model, x, y = _trained()
    made = pgd(model, x.sigmoid(), y, epsilon=0.3)
    assert float(made.min()) >= 0 and float(made.max()) <= 1
    assert torch.equal(made, pgd(model, x.sigmoid(), y, epsilon=0.3))
    with pytest.raises(ValueError, match="epsilon"):
        pgd(model, x, y, epsilon=-1.0)
    with pytest.raises(ValueError, match="floating-point"):
        pgd(model, x.long(), y)
