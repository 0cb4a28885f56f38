"""A pipeline as Flower sees it: whom it samples, what it makes of replies, and what it remembers of clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.federations import run, tiny
from tests.messages import error_reply, reply
from thistle.client import honest
from thistle.client.app import KINDS
from thistle.client.work import Work
from thistle.experiments.errors import UserError
from thistle.protocol.layout import Layout, State, to_record, to_state
from thistle.protocol.training import TrainReply
from thistle.server.recording.checkpoint import load_checkpoint
from thistle.strategies import Pipeline, Weighted, aggregators, setting, steps
from thistle.strategies.build import Own
from thistle.strategies.memory import reputation
from thistle.strategies.memory.reputation import REPUTATION
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.filters import AngleFilter, LossFilter

INPUTS, CLASSES, COUNT, LR = 6, 3, 15, 0.2
MEAN = steps.Aggregation("mean", aggregators.mean)
MEDIAN = steps.Aggregation("median", lambda updates, weights: aggregators.coordinate_median(updates), True)
GEOMETRIC = steps.Aggregation("geometric-median", aggregators.geometric_median)


class Nodes:
    """As much of a grid as sampling needs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(self.count))


def softmax_regression() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES), nn.BatchNorm1d(CLASSES))


class Bench:
    """A pipeline over a small model, with replies made by hand."""

    def __init__(self, *chosen: Step, network: nn.Module | None = None, trusts: bool = True, **more: Any) -> None:
        """`trusts`: the server has data of its own."""
        torch.manual_seed(3)
        self.network = network or softmax_regression()
        self.layout = Layout.of(self.network)
        self.sent: State = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        self.model = self.layout.vector(self.sent)
        self.pixels, self.labels = torch.rand(COUNT, 1, 2, 3), torch.randint(CLASSES, (COUNT,))
        data = {"model": self.network, "server_data": (self.pixels, self.labels)} if trusts else {}
        known = {"min_train_nodes": 4, "fraction_train": 0.1, "server_batch_size": 1000, "weight_decay": 0.01}
        self.pipeline = Own(made=chosen, **data, **{**known, **more})

    def ask(self, number: int = 1) -> list[int]:
        config, nodes = ConfigRecord({"lr": LR}), Nodes(10)
        self.pipeline.fit(min(self.pipeline.min_train_nodes, 10))
        messages = self.pipeline.configure_train(number, to_record(self.sent), config, nodes)  # type: ignore[arg-type]
        return [message.metadata.dst_node_id for message in messages]

    def updates(self, n: int) -> Tensor:
        return torch.randn(n, self.layout.size, generator=torch.Generator().manual_seed(8)) * 0.3

    def reply(self, client: int, update: Tensor, examples: int = 1, **buffers: Tensor) -> Message:
        state = self.layout.state(self.model + update, {**self.sent, **buffers})
        metrics = MetricRecord({"num-examples": examples})
        return reply(client, RecordDict({"arrays": to_record(state), "metrics": metrics}))

    def after(self, replies: list[Message], number: int = 1) -> tuple[State, dict[str, Any]]:
        self.ask(number)
        arrays, metrics = self.pipeline.aggregate_train(number, replies)
        assert arrays is not None and metrics is not None
        return to_state(arrays), dict(metrics)

    def step(self, replies: list[Message]) -> Tensor:
        return self.layout.vector(self.after(replies)[0]) - self.model

    def gradient(self, flat: np.ndarray) -> np.ndarray:
        """∇f0 of softmax regression, written out."""
        x = self.pixels.double().reshape(COUNT, -1).numpy()
        weight, bias = flat[:-CLASSES].reshape(CLASSES, INPUTS), flat[-CLASSES:]
        logits = x @ weight.T + bias
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        error = (chances - np.eye(CLASSES)[self.labels.numpy()]) / COUNT
        return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])


def clip(vector: np.ndarray, tau: float) -> np.ndarray:
    return vector * min(1.0, tau / np.linalg.norm(vector))


# ---- a round ---------------------------------------------------------------------------------------------------


def test_rofsl_is_its_formulas() -> None:
    rho, theta, tau, gamma = 0.1, 0.5, 0.15, 0.5
    bench = Bench(LossFilter(rho, theta), GEOMETRIC, steps.Clip(tau), steps.ServerLearning(gamma, tau))
    updates = bench.updates(7)
    ids = [9, 2, 5, 0, 3, 8, 6]
    state, metrics = bench.after([bench.reply(client, row) for client, row in zip(ids, updates, strict=True)])

    x, block = bench.model.double().numpy(), updates.double().numpy()
    g0 = bench.gradient(x)
    scores = [-row @ g0 - rho * row @ row for row in block]
    kept = sorted(range(7), key=lambda row: scores[row])[3:]
    z = block[kept].mean(axis=0)
    for _ in range(4):
        beta = np.array([1 / max(1e-6, np.linalg.norm(z - row)) for row in block[kept]])
        z = beta / beta.sum() @ block[kept]
    middle = x + clip(z, tau)
    learnt = middle.copy()
    for _ in range(2):
        learnt -= gamma * LR * (bench.gradient(learnt) + 0.01 * learnt)
    expected = middle + clip(learnt - middle, tau)

    np.testing.assert_allclose(bench.layout.vector(state), expected, rtol=1e-4, atol=2e-6)
    assert metrics["filter.empty"] == 0.0
    assert metrics["server.step"] == pytest.approx(min(tau, float(np.linalg.norm(learnt - middle))), rel=1e-4)
    verdicts = bench.pipeline.verdicts
    assert {client for client, v in verdicts.items() if v.step == "loss"} == {ids[r] for r in range(7) if r not in kept}
    assert all(v.weight == 0 for v in verdicts.values() if v.verdict == "filtered")
    for client, score in zip(ids, scores, strict=True):
        assert verdicts[client].score == pytest.approx(score, rel=1e-4, abs=1e-6)


def test_the_order_of_arrival_does_not_matter_and_errors_are_no_replies() -> None:
    bench = Bench(LossFilter(0.1, 0.25), GEOMETRIC)
    replies = [bench.reply(client, row) for client, row in enumerate(bench.updates(5))]
    assert torch.equal(bench.step(replies), bench.step([error_reply(9, "gone"), *replies[::-1]]))
    assert set(bench.pipeline.verdicts) == set(range(5))


def test_nobody_kept_and_the_server_learns_alone() -> None:
    bench = Bench(AngleFilter(0.5), MEAN, steps.Clip(1.0), steps.ServerLearning(0.5, 0.0), network=softmax_regression())
    x = bench.model.double().numpy()
    uphill = torch.from_numpy(bench.gradient(x)).float()
    state, metrics = bench.after([bench.reply(client, uphill * (client + 1)) for client in range(3)])
    learnt = x.copy()
    for _ in range(2):
        learnt -= 0.5 * LR * (bench.gradient(learnt) + 0.01 * learnt)
    np.testing.assert_allclose(bench.layout.vector(state), learnt, rtol=1e-5, atol=1e-6)
    assert metrics["filter.empty"] == 1.0
    assert {v.step for v in bench.pipeline.verdicts.values()} == {"angle"}


@pytest.mark.parametrize("weighted", [True, False])
def test_sizes_count_only_when_weighted(weighted: bool) -> None:
    bench = Bench(MEAN, weighted=weighted)
    updates, sizes = bench.updates(3), [30, 10, 20]
    step = bench.step([bench.reply(c, row, n) for c, (row, n) in enumerate(zip(updates, sizes, strict=True))])
    share = np.array(sizes) / 60 if weighted else np.full(3, 1 / 3)
    np.testing.assert_allclose(step, share @ updates.double().numpy(), rtol=1e-4, atol=1e-6)


def test_a_round_that_was_not_aggregated_has_no_verdicts() -> None:
    bench = Bench(MEAN)
    bench.step([bench.reply(0, bench.updates(1)[0])])
    assert bench.pipeline.verdicts
    bench.ask(2)
    assert not bench.pipeline.verdicts, "last round's would count as this round's"


# ---- buffers ---------------------------------------------------------------------------------------------------


def statistics(value: float) -> dict[str, Tensor]:
    full = torch.full((CLASSES,), value)
    return {"2.running_mean": full, "2.running_var": full, "2.num_batches_tracked": torch.tensor(int(value))}


def keep_first(count: int) -> Step:
    def step(round: Round, progress: Progress) -> Progress:
        return progress.drop(torch.arange(len(round.ids)) >= count, "test")

    return step


@pytest.mark.parametrize("rule", [MEAN, GEOMETRIC, MEDIAN], ids=lambda rule: rule.name)
def test_buffers_of_the_filtered_have_no_say(rule: Step) -> None:
    bench = Bench(keep_first(3), rule, network=normed(), trusts=False)
    updates = bench.updates(7)
    replies = [bench.reply(c, row, **statistics(2.0 if c < 3 else 1e5)) for c, row in enumerate(updates)]
    state, _ = bench.after(replies)
    for name, wanted in statistics(2.0).items():
        assert torch.equal(state[name], wanted), name


@pytest.mark.parametrize("rule", [MEAN, MEDIAN], ids=lambda rule: rule.name)
def test_buffers_stay_where_nobody_is_kept(rule: Step) -> None:
    bench = Bench(keep_first(0), rule, network=normed(), trusts=False)
    state, _ = bench.after([bench.reply(c, row, **statistics(9.0)) for c, row in enumerate(bench.updates(3))])
    for entry in bench.layout.buffers:
        assert torch.equal(state[entry.name], bench.sent[entry.name])


def test_a_client_that_krum_did_not_choose_is_heard() -> None:
    """Its one choice could lie about its buffers without anybody to check it."""
    krum = steps.Aggregation("krum", lambda updates, weights: aggregators.krum(updates, 1), leaves_out="-")
    bench = Bench(krum, network=normed(), trusts=False)
    updates = bench.updates(1).repeat(6, 1) + 0.1 * bench.updates(6)
    honest, _ = bench.after([bench.reply(c, row, **statistics(1.0)) for c, row in enumerate(updates)])
    chosen = [c for c, verdict in bench.pipeline.verdicts.items() if verdict.verdict == "accepted"]
    assert len(chosen) == 1
    replies = [bench.reply(c, row, **statistics(30.0 if c in chosen else 1.0)) for c, row in enumerate(updates)]
    state, _ = bench.after(replies)
    assert all(torch.equal(state[name], honest[name]) for name in statistics(1.0))


def test_weights_do_not_make_a_client_louder() -> None:
    bench = Bench(MEAN, network=normed(), weighted=True, trusts=False)
    sizes = ((0, 10, 1.0), (1, 1000, 1e3), (2, 30, 2.0))
    state, _ = bench.after([bench.reply(c, bench.updates(3)[c], n, **statistics(v)) for c, n, v in sizes])
    np.testing.assert_allclose(state["2.running_mean"], 1.5)


def normal_statistics(bench: Bench, state: State) -> tuple[Tensor, Tensor]:
    """Of the server's data at this model, as batch norm counts them: by hand."""
    inputs = bench.pixels.flatten(1) @ state["1.weight"].T + state["1.bias"]
    return inputs.mean(0), inputs.var(0)


@pytest.mark.parametrize("lie", [1e6, 30.0, 0.0])
def test_the_servers_data_speak_against_liars(lie: float) -> None:
    """All clients lie: the next model has the statistics of the server's data."""
    bench = Bench(MEAN, steps.ServerLearning(0.5, 0.0), network=normed())
    state, _ = bench.after([bench.reply(c, row, **statistics(lie)) for c, row in enumerate(bench.updates(3))])
    mean, variance = normal_statistics(bench, state)
    torch.testing.assert_close(state["2.running_mean"], mean)
    torch.testing.assert_close(state["2.running_var"], variance)


def test_batch_norm_of_the_server() -> None:
    """`strategy.batch-norm = "server"`: its statistics, however plausible the clients' are; dropout is off."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES), nn.BatchNorm1d(CLASSES), nn.Dropout(0.5))
    bench = Bench(MEAN, network=network, batch_norm="server")
    first = bench.after([bench.reply(c, row) for c, row in enumerate(bench.updates(3))])[0]
    mean, variance = normal_statistics(bench, first)
    torch.testing.assert_close(first["2.running_mean"], mean)
    torch.testing.assert_close(first["2.running_var"], variance)
    again = bench.after([bench.reply(c, row) for c, row in enumerate(bench.updates(3))])[0]
    assert all(torch.equal(first[name], again[name]) for name in first), "in a fixed order"


# ---- sampling and reputation -----------------------------------------------------------------------------------


def test_sampling_is_without_replacement_and_by_seed_and_round() -> None:
    rounds = [Bench(MEAN).ask(number) for number in range(1, 9)]
    np.random.seed(1)
    assert [Bench(MEAN).ask(number) for number in range(1, 9)] == rounds
    assert all(len(set(chosen)) == 4 and chosen == sorted(chosen) for chosen in rounds)
    assert len({tuple(chosen) for chosen in rounds}) > 4
    assert [Bench(MEAN, seed=1).ask(number) for number in range(1, 9)] != rounds
    assert Bench(MEAN, min_train_nodes=99).ask() == list(range(10))


def test_everybody_is_sampled_alike() -> None:
    bench = Bench(MEAN)
    counts = np.bincount(np.concatenate([bench.ask(number) for number in range(1, 501)]), minlength=10)
    assert counts.sum() == 2000 and np.abs(counts - 200).max() < 45


def test_a_bad_name_is_sampled_less_but_never_not() -> None:
    bench = Bench(MEAN, reputation=True)
    bench.pipeline.memory |= REPUTATION.after({}, [0], np.zeros(1))
    draws = [bench.ask(number) for number in range(1, 501)]
    assert all(len(set(chosen)) == 4 for chosen in draws)
    counts = np.bincount(np.concatenate(draws), minlength=10)
    assert 0 < counts[0] < 40 and counts[1:].min() > 150


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.data())
def test_chances_are_never_zero(values: list[float], data: st.DataObject) -> None:
    available = np.array(data.draw(st.lists(st.sampled_from(range(len(values))), min_size=1, unique=True)))
    memory = REPUTATION.after({}, range(len(values)), np.array(values))
    chances = reputation.chances(memory, available)
    floored = [max(values[client], 0.05) for client in available]
    np.testing.assert_allclose(chances, np.array(floored) / sum(floored))
    assert chances.min() >= 0.05 / len(values) and chances.sum() == pytest.approx(1)


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["accepted", "excluded", "failed"])), max_size=20))
def test_reputation_forgets_slowly(clients: list[tuple[float, str]]) -> None:
    before = np.array([value for value, _ in clients])
    memory = REPUTATION.after({}, range(len(clients)), before)
    said = {kind: [c for c, (_, verdict) in enumerate(clients) if verdict == kind] for kind in ("accepted", "excluded")}
    after = REPUTATION.of(reputation.judged(memory, said["accepted"], said["excluded"]), range(len(clients)))
    formula = {"accepted": lambda r: 0.8 * r + 0.2, "excluded": lambda r: 0.8 * r, "failed": lambda r: r}
    np.testing.assert_allclose(after, [formula[verdict](value) for value, verdict in clients])
    np.testing.assert_array_equal(REPUTATION.of(memory, range(len(clients))), before)


def test_verdicts_become_reputation() -> None:
    bench = Bench(keep_first(2), MEAN, reputation=True)
    replies = [bench.reply(client, row) for client, row in zip((1, 4, 6), bench.updates(3), strict=True)]
    for number in (1, 2):
        bench.after(replies, number)
    bench.pipeline.penalise([8])
    bench.pipeline.penalise([])
    expected = np.ones(10)
    expected[6], expected[8] = 0.64, 0.8
    np.testing.assert_allclose(REPUTATION.of(bench.pipeline.memory, range(10)), expected)


def test_next_to_no_weight_is_on_record_and_costs_no_reputation() -> None:
    bench = Bench(keep_first(5), GEOMETRIC, reputation=True)
    updates = bench.updates(6)
    updates[2] += 1e4
    bench.after([bench.reply(client, row) for client, row in enumerate(updates)])
    said = bench.pipeline.verdicts
    assert [said[client].verdict for client in range(6)] == ["accepted"] * 5 + ["filtered"]
    assert (said[2].step, said[2].reason) == (GEOMETRIC.name, f"weight {said[2].weight:.2g} of 0.2")
    assert said[2].weight is not None and said[2].weight < 0.02 and said[5].step == "test"
    assert [client for client, verdict in said.items() if not verdict.mattered] == [2, 5]
    np.testing.assert_allclose(REPUTATION.of(bench.pipeline.memory, range(6)), [1.0] * 5 + [0.8])


def test_without_reputation_nothing_is_held_against_anybody() -> None:
    bench = Bench(MEAN)
    bench.pipeline.penalise([1])
    assert not bench.pipeline.memory


def test_the_guards_rejections_cost_reputation_and_failures_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(work: Work) -> TrainReply:
        if work.client == 2:
            raise ValueError("no disk")
        reply = honest.train(work)
        if work.client != 1:
            return reply
        broken = {name: tensor * float("nan") for name, tensor in to_state(reply.arrays).items()}
        return replace(reply, arrays=to_record(broken))

    monkeypatch.setitem(KINDS, "honest", train)
    few = {"task.clients": 4, "client.per-round": 4, "rounds": 2, "task.train-size": 100, "evaluate.every": 9}
    folder = run(tiny(tmp_path, **few, **{"strategy.name": "fedavg", "strategy.reputation": True}))
    checkpoint = load_checkpoint(folder.checkpoints)
    assert checkpoint is not None
    names = {name: f"strategy/{name}" for name in (REPUTATION.name, f"{REPUTATION.name}.ids")}
    found = REPUTATION.of({name: checkpoint.arrays[path] for name, path in names.items()}, range(4))
    np.testing.assert_allclose(found, [1.0, 0.64, 1.0, 1.0])


class Halfway(Weighted, Pipeline):
    """A rule as somebody writes it who has read no documents: no decorator."""

    part: float = setting("how far to go", default=0.5)

    def rule(self, updates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.part * weights.float() @ updates


def test_settings_are_arguments_with_or_without_a_decorator() -> None:
    made: Any = Halfway
    halfway = made(part=0.25, weighted=True, fraction_train=0.3)
    assert (halfway.part, halfway.weighted, halfway.fraction_train, made().part) == (0.25, True, 0.3, 0.5)
    with pytest.raises(UserError, match="Halfway: part = 'far': should be a number"):
        made(part="far")
