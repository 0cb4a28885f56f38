"""The field's rules as strategies: what their settings do, round by round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.strategies.test_steps import KEPT, D, N, a_round, begin, updates
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout
from thistle.strategies import NormClipping, TrimmedMean, aggregators, steps
from thistle.strategies.aggregators.spectra import Spectra
from thistle.strategies.build import make_strategy, resolve
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.rounds import Progress
from thistle.strategies.rules.median import Median

UNEVEN = torch.tensor([40.0] + [1.0] * (N - 1), dtype=torch.float64)
PRIOR = UNEVEN / UNEVEN.sum()


def strategy(**more: Any) -> Pipeline:
    chosen = {"client.per-round": N, **{f"strategy.{key}": value for key, value in more.items()}}
    task: Any = SimpleNamespace(server_images=None, classes=10)
    made = make_strategy(resolve(Experiment.of(chosen)), task, Layout.of(nn.Linear(2, 2)))
    assert isinstance(made, Pipeline)
    return made


def run(block: Tensor, kept: Tensor | None = None, number: int = 1, prior: Tensor = PRIOR, **more: Any) -> Progress:
    progress = begin(block, kept)
    for step in strategy(**more).plan:
        progress = step(a_round(number=number, prior=prior), progress)
    return progress


# ---- weights of medians ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("f", "share"), [(1, 1 / 3), (2, 1 / 5), (4, 1 / 9)])
def test_a_median_with_weights_caps_them(f: int, share: float) -> None:
    found = run(updates(), name="median", weighted=True, malicious=f)
    capped = aggregators.cap_weights(PRIOR, share)
    assert float(capped.max()) == pytest.approx(share)
    assert torch.equal(found.step, aggregators.coordinate_median(updates(), capped).vector)
    assert not torch.equal(found.step, run(updates(), name="median").step)


def test_a_cap_of_ones_own() -> None:
    free = run(updates(), name="median", weighted=True, **{"weight-cap": 1.0})
    assert torch.equal(free.step, updates()[0]), "the first client has most of the weight"
    equal = run(updates(), name="median", weighted=True, **{"weight-cap": 0.01})
    assert torch.equal(equal.step, run(updates(), name="median").step)


@pytest.mark.parametrize(
    ("settings", "share"),
    [({}, 0.2), ({"malicious": 2}, 0.1), ({"trim": 0.4}, 1 / 3), ({"trim": 0.0}, 1 / 3), ({"malicious": 0}, 1.0)],
)
def test_f_clients_have_no_more_weight_than_a_trimmed_mean_cuts_off(settings: dict[str, Any], share: float) -> None:
    assert TrimmedMean(weighted=True, **settings).largest_share() == pytest.approx(share)
    found = run(updates(), name="trimmed-mean", weighted=True, **settings)
    beta = settings.get("trim", 0.2)
    capped = aggregators.cap_weights(PRIOR, share)
    assert torch.equal(found.step, aggregators.trimmed_mean(updates(), beta=beta, weights=capped).vector)


def test_equal_clients_give_the_bits_of_no_weights() -> None:
    even = torch.full((N,), 1 / N, dtype=torch.float64)
    for name in ("median", "trimmed-mean"):
        weighted = run(updates(), prior=even, name=name, weighted=True)
        plain = run(updates(), prior=even, name=name)
        assert torch.equal(weighted.step, plain.step) and torch.equal(weighted.weights, plain.weights)


def test_mixed_rows_have_no_weights() -> None:
    for name in ("median", "trimmed-mean", "norm-clipping", "rlr"):
        weighted = run(updates(), name=name, weighted=True, pre="nnm")
        assert torch.equal(weighted.step, run(updates(), name=name, pre="nnm").step)


def test_weights_as_arguments() -> None:
    assert Median().capped(PRIOR) is None and Median(weighted=True).capped(None) is None
    capped = Median(weighted=True, weight_cap=0.5).capped(PRIOR)
    assert capped is not None and float(capped.max()) == pytest.approx(0.5)


# ---- norm clipping ---------------------------------------------------------------------------------------------


def test_norm_clipping_with_weights() -> None:
    found = run(updates(), name="norm-clipping", weighted=True, bound=1.0)
    assert torch.equal(found.step, aggregators.clipped_mean(updates(), PRIOR, 1.0).vector)
    even = torch.full((N,), 1 / N, dtype=torch.float64)
    plain = run(updates(), prior=even, name="norm-clipping")
    assert torch.equal(plain.step, aggregators.clipped_mean(updates()).vector)


def test_noise_is_a_function_of_seed_and_round() -> None:
    plain = run(updates(), name="norm-clipping").step

    def noise(number: int, **more: Any) -> Tensor:
        return run(updates(), number=number, name="norm-clipping", noise=0.5, **more).step - plain

    assert torch.equal(noise(1), noise(1)) and not torch.equal(noise(1), noise(2))
    other = Experiment.of({"seed": 1, "client.per-round": N, "strategy.name": "norm-clipping", "strategy.noise": 0.5})
    task: Any = SimpleNamespace(server_images=None, classes=10)
    made = make_strategy(resolve(other), task, Layout.of(nn.Linear(2, 2)))
    assert isinstance(made, NormClipping) and made.plan[1] != strategy(name="norm-clipping", noise=0.5).plan[1]
    drawn = torch.cat([noise(number) for number in range(200)])
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.05) and abs(float(drawn.mean())) < 0.05


def test_noise_is_off_by_default_and_silent_where_nobody_is_heard() -> None:
    assert len(strategy(name="norm-clipping").plan) == 1
    nobody = run(updates(), torch.zeros(N, dtype=torch.bool), name="norm-clipping", noise=0.5)
    assert not nobody.step.any()


def test_noise_follows_mixed_rows_too() -> None:
    plain = run(updates(), name="norm-clipping", pre="nnm").step
    noisy = run(updates(), name="norm-clipping", pre="nnm", noise=0.1).step
    assert 0 < float((noisy - plain).norm()) < 1


# ---- adaptive clipping before any rule -------------------------------------------------------------------------


def test_adaptive_clipping_touches_the_longest_of_the_kept_alone() -> None:
    block = updates() * torch.arange(1, N + 1)[:, None]
    block[~KEPT] = 1e20
    before = block.clone()
    after = steps.AdaptiveClipping(2)(a_round(), begin(block, KEPT)).updates
    assert torch.equal(after[~KEPT], before[~KEPT])
    lengths, kept = after[KEPT].norm(dim=1), before[KEPT]
    k = 2 * 2 * (9 - 2) // 9
    order = kept.norm(dim=1).argsort(descending=True)
    np.testing.assert_allclose(lengths[order[:k]], float(kept.norm(dim=1)[order[k]]), rtol=1e-6)
    assert torch.equal(after[KEPT][order[k:]], kept[order[k:]])


def test_adaptive_clipping_of_few_and_of_none() -> None:
    nobody = begin(updates(), torch.zeros(N, dtype=torch.bool))
    assert steps.AdaptiveClipping(2)(a_round(), nobody) is nobody
    two = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor([1, 4]), True)
    assert torch.equal(steps.AdaptiveClipping(4)(a_round(), begin(updates(), two)).updates, updates())


def test_spectra_are_clipped_with_their_updates() -> None:
    values = torch.ones(N, 3, dtype=torch.float64)
    progress = begin(updates() * torch.arange(1, N + 1)[:, None])
    with_spectra = Progress(progress.updates, progress.kept, progress.step, spectra=Spectra(torch.zeros(N, 4), values))
    factors = aggregators.adaptive_clipping(progress.updates, 3)
    after = steps.AdaptiveClipping(3)(a_round(), with_spectra)
    assert after.spectra is not None and torch.equal(after.spectra.values, values * factors[:, None])


@pytest.mark.parametrize("name", ["fedavg", "rfa", "median", "krum", "caf", "foolsgold", "norm-clipping", "dsvd"])
def test_any_rule_may_follow_adaptive_clipping(name: str) -> None:
    plan = strategy(name=name, pre="arc", malicious=2).plan
    place = [type(step) for step in plan].index(steps.AdaptiveClipping)
    assert plan[place] == steps.AdaptiveClipping(2) and len(plan) > place + 1
    if name == "dsvd":
        return  # needs a whole round
    block = updates()
    block[0] *= 1e6
    factors = aggregators.adaptive_clipping(block, 2).float()
    more = {"malicious": 2, "weighted": True} if name == "fedavg" else {"malicious": 2}
    clipped = run(block, name=name, pre="arc", **more)
    direct = run(factors[:, None] * block, name=name, **more)
    np.testing.assert_allclose(clipped.step, direct.step, rtol=1e-5, atol=1e-6)
    assert float(clipped.step.norm()) <= float(block[1:].norm(dim=1).max()) * 1.01


def test_clipping_comes_before_mixing_and_after_a_filter() -> None:
    kinds = [type(step) for step in strategy(name="rfa", pre="arc+nnm", malicious=2).plan]
    assert kinds == [steps.AdaptiveClipping, steps.NearestNeighbourMixing, steps.Aggregation]
    found = run(updates() * torch.arange(1, N + 1)[:, None], name="median", pre="arc+nnm", malicious=2)
    block = updates() * torch.arange(1, N + 1)[:, None]
    block = aggregators.adaptive_clipping(block, 2).float()[:, None] * block
    mixing = aggregators.nearest_neighbour_mixing(block, 2)
    np.testing.assert_allclose(found.step, aggregators.coordinate_median(block, mixing=mixing).vector, rtol=1e-6)
    assert found.step.shape == (D,)
