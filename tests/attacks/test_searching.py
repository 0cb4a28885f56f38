"""Attacks that try out the server's strategy: the line search, the closed forms of filters, and the white box."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from tests.federations import TINY
from thistle.attacks.checks import check_attack
from thistle.attacks.defence import KnownDefence, check_defence, known_defence
from thistle.attacks.poisoning.alie import Alie
from thistle.attacks.poisoning.ipm import Ipm
from thistle.attacks.poisoning.optimal import OptimalAlie, OptimalIpm, line_search
from thistle.attacks.poisoning.parts import Facts
from thistle.attacks.poisoning.white_box import WhiteBox, golden_section
from thistle.attacks.registry import find
from thistle.attacks.roles import node_orders, panel
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import to_record
from thistle.strategies.build import resolve
from thistle.strategies.registry import strategies
from thistle.strategies.rounds import Round
from thistle.strategies.steps.filters import AngleFilter, LossFilter, ZenoFilter
from thistle.tasks.models import build_model
from thistle.tasks.task import cached_task

SERVER = {**TINY, "task.server-data": "rendered", "client.per-round": 8}
OURS = sorted(name for name in strategies() if not name.startswith("flwr-"))


def experiment(strategy: str, **more: Any) -> Experiment:
    return resolve(Experiment.of({**SERVER, "strategy.name": strategy, **more}))


def first_model(made: Experiment) -> ArrayRecord:
    task = cached_task(made.task, made.seed)
    return to_record(build_model(made.network, task.shape, task.classes, made.seed).state_dict())


def defence(strategy: str, rule: str = "used", **more: Any) -> KnownDefence:
    made = experiment(strategy, **more)
    return known_defence(made, rule, 1, first_model(made), 0.1, None)


def updates(known: KnownDefence, rows: int = 5) -> Tensor:
    """Honest ones that descend, more or less."""
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(known.first.shape, generator=generator)
    return 0.003 * (torch.randn((rows, len(common)), generator=generator) + 0.7 * common)


class TestLineSearch:
    def test_it_doubles_while_it_gains_and_then_takes_shorter_steps(self) -> None:
        tried: list[float] = []

        def harm(strength: float) -> float:
            tried.append(strength)
            return -abs(strength - 35)

        assert line_search(harm) == pytest.approx(30 + 40 * 0.8**7)
        assert tried[:5] == pytest.approx([0, 10, 30, 70, 30 + 32])
        assert len(tried) == 20

    def test_optimal_ipm_against_the_median(self) -> None:
        """By hand in numpy: median over rows, norm, the same search written as a loop over two phases."""
        known, f = defence("median"), 3
        honest = updates(known)
        rows, mean = honest.double().numpy(), honest.double().numpy().mean(0)

        longest = 100 * np.median(np.linalg.norm(rows, axis=1))

        def vector(epsilon: float) -> np.ndarray:
            return -min(epsilon, longest / np.linalg.norm(mean)) * mean

        def distance(epsilon: float) -> float:
            return float(np.linalg.norm(np.median(np.vstack([rows, *[vector(epsilon)] * f]), axis=0) - mean))

        best, step, left = 0.0, 10.0, 19
        while left and distance(best + step) > distance(best):
            best, step, left = best + step, step * 2, left - 1
        left -= 1
        while left > 0:
            step *= 0.8
            best = best + step if distance(best + step) > distance(best) else best
            left -= 1
        sent = OptimalIpm()(honest, Facts(10, 8, f, defence=known))
        assert np.allclose(sent.numpy(), vector(best), rtol=1e-4, atol=1e-6)
        assert best > 0

    def test_optimal_alie_moves_the_rule_farther_than_any_fixed_strength(self) -> None:
        known = defence("fedavg", "trimmed-mean")
        honest, facts = updates(known), Facts(10, 8, 3, defence=known)

        def moved(sent: Tensor) -> float:
            return float((known.step(honest, sent.expand(3, -1)) - honest.mean(0)).norm())

        assert moved(OptimalAlie(rule="trimmed-mean")(honest, facts)) >= max(
            moved(Alie(strength=z)(honest, facts)) for z in (0.0, 0.5, 1.0, 1.5, 3.0)
        )


class TestTheDefence:
    @pytest.mark.parametrize("name", OURS)
    def test_every_strategy_can_be_tried_out(self, name: str) -> None:
        known = defence(name, **({"client.momentum": 0.0} if name == "scaffold" else {}))
        honest = updates(known)
        step = known.step(honest, -honest[:3])
        assert step.isfinite().all()
        assert torch.equal(step, known.step(honest, -honest[:3])), "a trial leaves nothing behind"

    def test_it_is_what_the_server_makes_of_the_same_rows(self) -> None:
        known = defence("fedavg")
        honest = updates(known)
        assert torch.allclose(known.step(honest, 7 * honest[:1]), (honest.sum(0) + 7 * honest[0]) / 6, atol=1e-6)

    def test_the_model_stays_where_the_rule_has_too_few_updates(self) -> None:
        known = defence("krum")
        honest = updates(known)
        assert float(known.step(honest[:1], honest[:1]).norm()) == 0.0
        assert float(known.step(honest, honest[:1]).norm()) > 0.0

    def test_who_knows_the_round_knows_n_and_f(self) -> None:
        made = experiment("fedavg", **{"attack.kind": "white-box", "attack.clients": "1,2", "attack.omniscient": True})
        state = {"sampled": np.array([0, 1, 5, 2, 7])}
        known = known_defence(made, "used", 1, first_model(made), 0.1, state)
        assert (known.honest, known.malicious) == ((0, 5, 7), (1, 2))
        assert known.counts() == {"n": 5, "f": 2}
        assert float(known.learnt().norm()) == 0.0

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"attack.rule": "medain"}, "attack.rule = medain: no such strategy; did you mean median"),
            ({"attack.rule": "flwr-fedavg"}, "attack.kind = optimal-ipm: flwr-fedavg aggregates in its own way"),
            ({"attack.rule": "bulyan", "client.per-round": 4}, "attack.rule = bulyan: .*needs at least 7 updates"),
            ({"attack.rule": "rofsl", "task.server-data": "none"}, "attack.rule = rofsl: .*needs server data"),
            ({"attack.kind": "white-box", "strategy.name": "flwr-fedavg"}, "attack.kind = white-box: flwr-fedavg"),
        ],
    )
    def test_what_cannot_be_tried_out_is_refused(self, keys: dict[str, Any], message: str) -> None:
        flat = {**SERVER, "attack.kind": "optimal-ipm", "attack.fraction": 0.3, **keys}
        if flat["attack.kind"] == "white-box":
            flat["attack.omniscient"] = True
        with pytest.raises(UserError, match=message) as caught:
            check_defence(Experiment.of(flat))
        assert "\n" not in str(caught.value)

    def test_the_white_box_needs_honest_clients(self) -> None:
        made = Experiment.of({**TINY, "attack.kind": "white-box", "attack.fraction": 0.3})
        with pytest.raises(UserError, match=r"attack\.omniscient = true"):
            check_attack(made.attack, 12)

    @pytest.mark.parametrize("kind", ["optimal-alie", "optimal-ipm", "white-box"])
    def test_a_real_node_cannot_know_it(self, kind: str) -> None:
        with pytest.raises(UserError, match="not possible on a real node"):
            node_orders({"role": "malicious", "attack": kind})

    def test_a_panel_of_a_given_size_repeats_those_who_are_few(self) -> None:
        attack = Experiment.of({**TINY, "attack.kind": "optimal-ipm", "attack.clients": "1,2"}).attack
        trainings = panel(attack, 1, 12, 0, 5)
        assert sorted(trainings) == [(1, 0), (1, 1), (2, 0), (2, 1), trainings[-1]]
        assert len(panel(attack, 1, 12, 0)) == 2
        poison = find("optimal-ipm")().poison(Facts(10, 8, 3))
        assert poison.panel == 5


class Server:
    def __init__(self, gradient: Tensor) -> None:
        self._gradient = gradient

    def gradient(self) -> Tensor:
        return self._gradient

    def learn(self, start: Tensor, rate: float) -> Tensor:
        raise NotImplementedError


class TestFilters:
    """`worst`: passes, and nothing that passes goes farther."""

    generator = torch.Generator().manual_seed(5)
    gradient = torch.randn(40, generator=generator)
    honest = 0.4 * torch.randn((7, 40), generator=generator) - 0.3 * gradient
    target = -honest.mean(0)

    def round(self, rows: int) -> Round:
        prior = torch.full((rows,), 1 / rows, dtype=torch.float64)
        return Round(1, tuple(range(rows)), prior, torch.zeros(40), 0.1, Server(self.gradient))

    def test_the_loss_filters_ball(self) -> None:
        chosen, round = LossFilter(rho=0.1, theta=0.5), self.round(10)
        scores = chosen.scores(round, self.honest).sort().values
        worst = chosen.worst(round, self.honest, 3, self.target)
        assert len(worst) == 3, "one, two or three copies pass when three, four or five honest scores are lower"
        for vector, beaten in zip(worst, scores[[2, 3, 4]], strict=True):
            mine = float(-vector @ self.gradient - 0.1 * vector @ vector)
            assert float(beaten) < mine < float(beaten) + 0.5
            for trial in vector + 0.3 * torch.randn((300, 40), generator=self.generator):
                passes = float(-trial @ self.gradient - 0.1 * trial @ trial) >= mine
                assert not passes or float(trial @ self.target) <= float(vector @ self.target) + 1e-4

    @pytest.mark.parametrize("chosen", [AngleFilter(0.2), ZenoFilter(0.1, 0.3)])
    def test_the_cones(self, chosen: AngleFilter | ZenoFilter) -> None:
        least = 0.2 if isinstance(chosen, AngleFilter) else 0.1 * 0.1 - 0.3
        [vector] = chosen.worst(self.round(10), self.honest, 3, self.target)
        cosine = float(torch.cosine_similarity(vector, -self.gradient, dim=0))
        assert cosine == pytest.approx(least, abs=1e-5)
        towards = float(torch.cosine_similarity(vector, self.target, dim=0))
        for trial in vector + 0.3 * vector.norm() / 40**0.5 * torch.randn((300, 40), generator=self.generator):
            passes = float(torch.cosine_similarity(trial, -self.gradient, dim=0)) >= least
            assert not passes or float(torch.cosine_similarity(trial, self.target, dim=0)) <= towards + 1e-5


class TestWhiteBox:
    @pytest.mark.parametrize("name", ["rofsl", "fedavg", "median", "multi-krum"])
    def test_it_harms_more_than_attacks_that_do_not_look(self, name: str) -> None:
        known = defence(name)
        honest, facts = updates(known), Facts(10, 8, 3, defence=known)
        mean = honest.mean(0)

        def harm(sent: Tensor) -> float:
            return -float(known.step(honest, sent.expand(3, -1)) @ mean)

        sent = WhiteBox()(honest, facts)
        others = [Ipm(strength=0.5), Ipm(strength=1.0), Alie(), Alie(strength=1.5)]
        assert harm(sent) >= max(harm(other(honest, facts)) for other in others)
        assert torch.equal(sent, WhiteBox()(honest, facts))

    def test_it_tries_no_more_than_it_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = defence("rofsl")
        honest, trials = updates(known), []
        original = KnownDefence.step
        monkeypatch.setattr(KnownDefence, "step", lambda *given: trials.append(1) or original(*given))
        WhiteBox()(honest, Facts(10, 8, 3, defence=known))
        assert 40 <= len(trials) <= 51

    def test_golden_section_finds_a_maximum(self) -> None:
        tried: list[float] = []
        golden_section(lambda x: tried.append(x) or -((x - 0.3) ** 2), 12)
        assert len(tried) == 12
        assert min(abs(x - 0.3) for x in tried) < 0.01
