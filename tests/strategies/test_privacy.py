"""Differential privacy: ε against other computations, the same model where there is no noise, and what is refused."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.federations import model_sha, rounds, run, tiny
from thistle.client.privacy import noise_rng, privatise
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.experiments.settings import Client
from thistle.protocol.layout import Layout
from thistle.strategies.build import resolve

DP: dict[str, Any] = {"strategy.name": "dp-fedavg", "client.per-round": 12}
DELTA = 1e-5
CDF = NormalDist().cdf


def analytic(noise: float, count: int, delta: float) -> float:
    """The ε at which δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), by bisection."""
    mu, low, high = math.sqrt(count) / noise, 0.0, 400.0
    for _ in range(200):
        middle = (low + high) / 2
        spent = CDF(mu / 2 - middle / mu) - math.exp(middle) * CDF(-mu / 2 - middle / mu)
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


def convolved(noise: float, chance: float, count: int, delta: float) -> float:
    """Of a Poisson-subsampled Gaussian: its privacy loss on a grid, convolved by FFT, in the worse direction."""
    x = np.linspace(-30 * noise, 30 * noise + 1, 400_001)
    out = np.exp(-(x**2) / (2 * noise**2))
    mixed = (1 - chance) * out + chance * np.exp(-((x - 1) ** 2) / (2 * noise**2))
    ratio = np.log1p(chance * np.expm1((2 * x - 1) / (2 * noise**2)))
    width, half = 2e-4, 2**18
    found = 0.0
    for weight, loss in ((mixed, ratio), (out, -ratio)):
        places = np.clip(np.rint(loss / width).astype(int) + half, 0, 2 * half - 1)
        mass = np.bincount(places, weight / weight.sum(), 2 * half)
        spectrum = np.fft.rfft(np.roll(mass, -half)) ** count
        total = np.roll(np.fft.irfft(spectrum, 2 * half), half)
        losses = (np.arange(2 * half) - half) * width
        low, high = 0.0, half * width
        for _ in range(60):
            middle = (low + high) / 2
            above = losses > middle
            spent = float(np.sum(total[above] * -np.expm1(middle - losses[above])))
            low, high = (middle, high) if spent > delta else (low, middle)
        found = max(found, high)
    return found


def without_replacement(noise: float, chance: float, count: int, delta: float) -> float:
    """Wang, Balle and Kasiviswanathan 2019, theorem 27, at whole orders and with fifty digits."""
    from mpmath import binomial, exp, log, mp, mpf, sqrt

    mp.dps = 50

    def moment(order: int) -> Any:
        return exp(mpf(order) * (order + 1) / (2 * mpf(noise) ** 2))

    @cache
    def difference(order: int) -> Any:
        """B(j) = the j-th forward difference of e^{cgf} at 0."""
        return abs(sum((-1) ** k * binomial(order, k) * moment(k - 1) for k in range(order + 1)))

    best = math.inf
    for order in range(2, 33):
        total = mpf(1)
        for j in range(2, order + 1):
            if j == 2:
                bound = min(4 * (exp(1 / mpf(noise) ** 2) - 1), 2 * exp(1 / mpf(noise) ** 2))
            else:
                bound = min(4 * sqrt(difference(2 * (j // 2)) * difference(2 * -(-j // 2))), 2 * moment(j - 1))
            total += mpf(chance) ** j * binomial(order, j) * bound
        renyi = count * log(total) / (order - 1)
        best = min(
            best, float(renyi + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1))
        )
    return best


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (4.0, 10), (8.0, 60)])
def test_epsilon_of_everybody_is_the_gaussian_mechanisms(noise: float, count: int) -> None:
    pytest.importorskip("dp_accounting")
    from thistle.strategies.accounting import fixed, gaussian

    assert fixed(noise, 10, 10, count, DELTA) == pytest.approx(analytic(noise / 2, count, DELTA), rel=0.01)
    assert gaussian(noise, count, DELTA) == pytest.approx(analytic(noise, count, DELTA), rel=0.01)


@pytest.mark.parametrize(("noise", "chance", "count"), [(1.0, 0.2, 20), (2.0, 0.1, 100)])
def test_epsilon_of_poisson_sampling_is_that_of_its_privacy_loss(noise: float, chance: float, count: int) -> None:
    pytest.importorskip("dp_accounting")
    from thistle.strategies.accounting import poisson

    assert poisson(noise, chance, count, DELTA) == pytest.approx(convolved(noise, chance, count, DELTA), rel=0.01)


@pytest.mark.parametrize(("noise", "per_round", "count"), [(4.0, 5, 20), (6.0, 10, 50)])
def test_epsilon_of_a_fixed_number_is_the_published_bound(noise: float, per_round: int, count: int) -> None:
    pytest.importorskip("dp_accounting")
    from thistle.strategies.accounting import fixed

    published = without_replacement(noise / 2, per_round / 100, count, DELTA)
    assert fixed(noise, 100, per_round, count, DELTA) == pytest.approx(published, rel=0.01)
    assert fixed(noise, 100, per_round, count, DELTA) < fixed(noise, 100, 100, count, DELTA)


def test_without_noise_and_clipping_the_model_is_the_plain_means(tmp_path: Path) -> None:
    few: dict[str, Any] = {"rounds": 2, "client.per-round": 4}
    plain = model_sha(run(tiny(tmp_path, "plain", **few, **{"strategy.name": "fedavg", "strategy.weighted": False})))
    nothing = {"strategy.name": "dp-fedavg", "strategy.noise": 0.0, "strategy.bound": "off"}
    assert model_sha(run(tiny(tmp_path, "private", **few, **nothing))) == plain
    far = {"strategy.name": "fedavg", "strategy.weighted": False, "client.local-bound": 0.0, "client.local-noise": 0.0}
    assert model_sha(run(tiny(tmp_path, "local", **few, **far))) == plain


def test_epsilon_is_in_the_metrics_and_ends_the_run(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from thistle.strategies.accounting import fixed

    strong = {
        **DP,
        "strategy.noise": 8.0,
        "strategy.bound": 0.01,
        "stop.epsilon": 2.2,
        "rounds": 6,
        "run.keep-replies": True,
    }
    folder = run(tiny(tmp_path, **strong))
    spent = [line["privacy.epsilon"] for line in rounds(folder)]
    assert spent == [fixed(8.0, 12, 12, count, DELTA) for count in range(1, len(spent) + 1)]
    assert len(spent) < 6 and spent[-1] <= 2.2 < rounds(folder)[-1]["privacy.next"]
    assert read_json(folder.summary)["ended"] == "epsilon" and rounds(folder)[-1]["privacy.delta"] == DELTA

    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    from thistle.audit.reader import Reader
    from thistle.audit.replay import Replay

    reader = Reader(folder.path, load_pem_public_key((folder.path / "audit.pub").read_bytes()))  # type: ignore[arg-type]
    reader.follow_runs()
    assert not list(Replay(reader.runs["run"], folder.path).problems()), "noise is drawn by seed, round and content"


def test_the_noise_has_the_length_that_is_stated(tmp_path: Path) -> None:
    from thistle.strategies.rounds import Progress, Round
    from thistle.strategies.rules.dp_fedavg import DPFedAvg

    updates = torch.randn(5, 40_000)
    rule = DPFedAvg(bound=2.0, noise=3.0, expected=10, num_clients=10, seed=1)
    progress, round = Progress.begin(updates), Round(1, tuple(range(5)), torch.ones(5) / 5, torch.zeros(1), 0.1, None)
    steps = rule.plan[:3]
    clipped = steps[0](round, progress)
    divided = steps[1](round, clipped)
    noised = steps[2](round, divided)
    assert torch.allclose(divided.step, (updates / updates.norm(dim=1, keepdim=True) * 2).sum(0) / 10, atol=1e-6)
    assert (noised.step - divided.step).std().item() == pytest.approx(3.0 * 2.0 / 10, rel=0.03)
    assert torch.equal(noised.step, steps[2](round, divided).step)
    other = steps[2](round, steps[1](round, steps[0](round, Progress.begin(updates * -1.0))))
    assert not torch.allclose(noised.step - divided.step, other.step + divided.step, atol=1e-3), "noise of its own"


def test_clients_clip_and_add_noise_before_they_send() -> None:
    model = nn.Linear(200, 100)
    sent = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    client, layout = Client(local_bound=0.5, local_noise=2.0), Layout.of(model)
    private = layout.vector(privatise(client, model, sent, noise_rng(1, True, 1, 2)))
    again = layout.vector(privatise(client, model, sent, noise_rng(1, True, 1, 2)))
    fresh = layout.vector(privatise(client, model, sent, noise_rng(1, False, 1, 2)))
    assert torch.equal(private, again) and not torch.equal(private, fresh)
    assert private.std().item() == pytest.approx(1.0, rel=0.03)
    clipped = layout.vector(privatise(Client(local_bound=0.5), model, sent, noise_rng(1, True, 1, 2)))
    assert clipped.norm().item() == pytest.approx(0.5, rel=1e-4)
    with pytest.raises(UserError, match="no noise covers"):
        privatise(client, nn.BatchNorm1d(3), nn.BatchNorm1d(3).state_dict(), noise_rng(1, True))


def test_private_replies_say_nothing_but_the_update(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    noise = {"client.local-bound": 1.0, "client.local-noise": 0.01, "run.keep-replies": True, "rounds": 1}
    folder = run(tiny(tmp_path, **{"strategy.name": "median", **noise}))
    assert rounds(folder)[0]["privacy.local-epsilon"] > 0 and rounds(folder)[0]["train_loss"] == 0.0
    for path in folder.replies.iterdir():
        said = json.loads(path.read_bytes().partition(b"\n")[0])["metrics"][1]
        assert {name: said[name] for name in said if name != "seconds"} == {"num-examples": 1, "loss": 0.0}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({**DP, "strategy.bound": "off"}, "strategy.bound = off"),
        ({**DP, "strategy.pre": "nnm"}, "strategy.pre = nnm"),
        ({**DP, "strategy.filter": "loss"}, "strategy.filter = loss"),
        ({**DP, "strategy.reputation": True}, "strategy.reputation"),
        ({**DP, "strategy.control-variates": True}, "strategy.control-variates"),
        ({**DP, "strategy.rank-step": 0.1}, "strategy.rank-step"),
        ({**DP, "client.clip": 1.5}, "client.clip"),
        ({**DP, "stop.epsilon": 0.1}, "the first round already takes"),
        ({**DP, "strategy.sampling": "poisson", "client.per-round": 4}, "client.per-round = 4"),
        ({"strategy.name": "krum", "strategy.delta": 1e-6}, "delta"),
        ({"client.local-noise": 1.0}, "client.local-bound"),
        ({"client.local-noise": 1.0, "client.local-bound": 1.0, "strategy.class-aware": True}, "no noise covers"),
        ({"client.local-noise": 1.0, "client.local-bound": 1.0, "stop.epsilon": 1.0}, "stop.epsilon"),
    ],
)
def test_what_breaks_the_guarantee_is_refused(wrong: dict[str, Any], reason: str) -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(UserError, match=reason):
        resolve(Experiment.of({"task.clients": 12, "client.per-round": 12, **wrong}))


def test_batch_norm_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(UserError, match="without batch norm"):
        run(tiny(tmp_path, **{**DP, "model.name": "vgg8", "rounds": 1}))


def test_a_deployed_runs_secret_is_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    secret = folder.secret()
    assert folder.secret() == secret and (tmp_path / "noise.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    assert RunFolder(tmp_path / "other").secret() != secret
