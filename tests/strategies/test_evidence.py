"""Evidence: agreement against cones enumerated by hand, the two kinds in made-up crowds, and small federations."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.federations import model_sha, rounds, run, tiny, verdicts
from tests.server.test_federation import Killed, MortalGrid
from tests.strategies.test_learning import CLASSES, COUNT, mlp, normed, server, softmax_regression
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import read_json, read_lines
from thistle.strategies import Evidence
from thistle.strategies.build import resolve
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps import agreement, evidence, learning
from thistle.strategies.steps.agreement import Anchor, Head, majority
from thistle.strategies.steps.kinds import tell_apart

# ---- agreement with the server's classes -----------------------------------------------------------------------------


def cone_scores(vectors: Tensor, directions: Tensor) -> Tensor:
    return agreement.cone_scores(vectors, directions, vectors.double().norm(dim=1))


def ref_length(u: np.ndarray, directions: np.ndarray) -> float:
    """‖P_A u‖: of all faces of the cone, the nearest point whose coordinates there are not negative."""
    best, length = float(u @ u), 0.0
    for size in range(1, len(directions) + 1):
        for face in combinations(range(len(directions)), size):
            rows = directions[list(face)]
            weights, *_ = np.linalg.lstsq(rows.T, u, rcond=None)
            point = rows.T @ weights
            if (weights >= -1e-12).all() and (u - point) @ (u - point) < best:
                best, length = float((u - point) @ (u - point)), float(np.linalg.norm(point))
    return length


@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("width", [2, 6, 50])
def test_scores_are_those_of_the_cone(classes: int, width: int) -> None:
    torch.manual_seed(classes + width)
    directions = torch.randn(classes, width) + 0.5 * torch.randn(1, width)
    updates = torch.randn(12, width)
    rows = directions.double().numpy()
    wanted = [(ref_length(u, rows) - ref_length(-u, rows)) / np.linalg.norm(u) for u in updates.double().numpy()]
    assert np.allclose(cone_scores(updates, directions).numpy(), wanted, atol=1e-5)


@given(st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_scores_have_a_sign_and_no_unit(seed: int, scale: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    directions, updates = torch.randn(3, 8, generator=rng), torch.randn(5, 8, generator=rng)
    scores = cone_scores(updates, directions)
    assert ((scores >= -1) & (scores <= 1)).all()
    assert torch.allclose(cone_scores(-updates, directions), -scores, atol=1e-6)
    assert torch.allclose(cone_scores(scale * updates, directions), scores, atol=1e-6)
    assert torch.allclose(cone_scores(updates, scale * directions), scores, atol=1e-6)


def test_skewed_clients_agree_though_they_are_against_the_mean_gradient() -> None:
    directions = torch.tensor([[1.0, 0.8, 0.0], [-1.0, 0.8, 0.0]])
    skewed, mean = directions[1:], 0.9 * directions[0] + 0.1 * directions[1]
    assert float(skewed[0] @ mean) < 0 and float(cone_scores(skewed, directions)[0]) > 0.7


def test_nothing_says_nothing() -> None:
    assert cone_scores(torch.zeros(2, 4), torch.randn(3, 4)).tolist() == [0.0, 0.0]
    assert cone_scores(torch.randn(2, 4), torch.zeros(3, 4)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("make", [softmax_regression, mlp, normed])
def test_the_classes_gradients_sum_to_the_server_s(make: Any) -> None:
    data = server(make)
    anchor, labels = data.anchor(), data.data.labels
    shares = torch.bincount(labels, minlength=CLASSES).float() / COUNT
    assert torch.allclose(-(shares @ anchor.directions), data.gradient(), atol=1e-6)
    assert data.asked == ("gradient", "anchor") and data.anchor() is anchor


def test_the_head_is_found_with_its_mean_input() -> None:
    data = server(mlp)
    head, network = data.anchor().head, mlp()
    assert head is not None
    network.load_state_dict(data.sent)
    inner = torch.tanh(network[1](data.data.inputs.flatten(1)))  # type: ignore[operator]
    assert torch.allclose(head.feature, inner.mean(dim=0), atol=1e-6)
    vector = data.data.layout.vector(data.sent)
    assert torch.equal(vector[head.start : head.start + 7 * CLASSES].reshape(CLASSES, 7), data.sent["3.weight"])


def test_a_network_without_a_linear_head_is_judged_as_a_whole() -> None:
    def convolution() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, CLASSES, 3), nn.Flatten())

    anchor = server(convolution).anchor()
    assert anchor.head is None
    assert torch.equal(
        anchor.scores(anchor.directions, anchor.directions.double().norm(dim=1)),
        cone_scores(anchor.directions, anchor.directions),
    )


def test_a_network_may_be_its_own_head() -> None:
    def alone() -> nn.Module:
        return nn.Linear(3, CLASSES)

    data = server(alone)
    data.data.inputs = data.data.inputs[:, 0, 0]
    head = data.anchor().head
    assert head is not None and head.start == 0
    assert torch.allclose(head.feature, data.data.inputs.mean(dim=0), atol=1e-6)


def test_a_head_with_a_weight_of_another_name_is_no_head() -> None:
    def normed_head() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(18, CLASSES)))

    assert server(normed_head).anchor().head is None


def test_what_all_classes_share_is_not_seen_in_the_centred_head() -> None:
    torch.manual_seed(0)
    feature = torch.randn(5)
    head, weights = Head(3, 4, feature), torch.randn(1, 3 + 20 + 4)
    moved = weights.clone()
    moved[:, 3:23] += torch.randn(5).repeat(4)  # every row the same
    moved[:, 3:23] += (torch.randn(4)[:, None] * feature).reshape(-1)  # along the mean feature
    moved[:, :3] += 1.0
    assert torch.allclose(head.centred(moved), head.centred(weights), atol=1e-5)
    assert head.centred(weights).abs().max() > 0.1


def test_many_classes_share_groups_and_numbers_are_one() -> None:
    rows = learning.class_rows(torch.arange(37) % 25)
    assert len(rows) == learning.GROUPS and sorted(torch.cat(rows).tolist()) == list(range(37))
    assert [row.tolist() for row in learning.class_rows(torch.rand(3))] == [[0, 1, 2]]


def test_without_data_the_majority_is_the_anchor() -> None:
    towards = torch.tensor([[1.0, 0.1], [2.0, -0.1], [3.0, 0.2], [-50.0, 0.0]])
    scores = majority(towards, towards.double() @ towards.double().T).scores(towards, towards.double().norm(dim=1))
    assert (scores[:3] > 0.9).all() and scores[3] < -0.9


# ---- two kinds of clients --------------------------------------------------------------------------------------------


def crowd(honest: int, malicious: int, times: float, seed: int, at: float = -0.5) -> tuple[np.ndarray, np.ndarray]:
    """Means of one informative feature and two uninformative ones; honest clients around 1, attackers around `at`."""
    rng = np.random.default_rng(seed)
    true = np.r_[rng.normal(1.0, 0.2, honest), rng.normal(at, 0.2, malicious)]
    counts = np.full((len(true), 3), times)
    means = np.stack([true, np.zeros_like(true), np.zeros_like(true)], axis=1)
    return means + rng.normal(0, 1, means.shape) * np.sqrt(WITHIN / times), counts


WITHIN = np.array([1.0, 0.3, 0.1])


@pytest.mark.parametrize("malicious", [5, 15, 30, 35])
@pytest.mark.parametrize("seed", range(3))
def test_attackers_are_told_apart_and_counted(malicious: int, seed: int) -> None:
    found = tell_apart(*crowd(50 - malicious, malicious, 8, seed), WITHIN)
    wrong = (found.honest < 0.5) != (np.arange(50) >= 50 - malicious)
    assert wrong.mean() <= 0.06
    assert abs(found.share - malicious / 50) < 0.08 and found.significance > evidence.SURE


@pytest.mark.parametrize("seed", range(10))
def test_where_nobody_attacks_no_attack_is_seen(seed: int) -> None:
    assert tell_apart(*crowd(50, 0, 8, seed), WITHIN).significance < evidence.SURE


def test_who_was_seen_once_is_less_sure() -> None:
    means, counts = crowd(30, 20, 8, 0)
    means, counts = np.vstack([means, means[-1:]]), np.vstack([counts, counts[-1:]])
    counts[-1] = 1
    found = tell_apart(means, counts, WITHIN)
    assert abs(found.honest[-1] - 0.5) < abs(found.honest[-2] - 0.5)


def test_to_agree_more_than_others_is_no_offence() -> None:
    means, counts = crowd(30, 20, 8, 0)
    means[0, 0] = 3.0
    assert tell_apart(means, counts, WITHIN).honest[0] > 0.5


def test_what_is_not_known_says_nothing() -> None:
    means, counts = crowd(30, 20, 8, 0)
    counts[:, 1:] = 0
    means[:, 1:] = 1e6
    alone = tell_apart(means[:, :1], counts[:, :1], WITHIN[:1])
    assert np.allclose(tell_apart(means, counts, WITHIN).honest, alone.honest, atol=1e-3)


# ---- the step --------------------------------------------------------------------------------------------------------


class Known:
    """A server whose classes pull along the first two axes."""

    def anchor(self) -> Anchor:
        return Anchor(torch.eye(2, 6), None)


def judged(updates: Tensor, memory: dict[str, np.ndarray], number: int = 1) -> Progress:
    n = len(updates)
    prior = torch.full((n,), 1 / n, dtype=torch.float64)
    step = evidence.Evidence(8, "server-data")
    given_ = Round(number, tuple(range(n)), prior, torch.zeros(6), 0.1, Known(), memory)  # type: ignore[arg-type]
    return step(given_, Progress.begin(updates.clone()))


def updates_of(honest: int, malicious: int, rng: np.random.Generator) -> Tensor:
    """Honest ones towards one of the classes, attackers away from them; noise in all directions."""
    towards = np.eye(2, 6)[rng.integers(2, size=honest)]
    away = -np.tile(np.eye(2, 6).sum(axis=0), (malicious, 1))
    return torch.from_numpy(np.vstack([towards, away]) + rng.normal(0, 0.3, (honest + malicious, 6))).float()


@pytest.mark.parametrize("malicious", [3, 6])
def test_a_majority_of_attackers_is_dropped(malicious: int) -> None:
    rng, memory = np.random.default_rng(0), dict[str, np.ndarray]()
    for number in range(1, 11):
        progress = judged(updates_of(10 - malicious, malicious, rng), memory, number)
        memory |= progress.notes
    assert progress.kept.tolist() == [True] * (10 - malicious) + [False] * malicious
    assert progress.metrics["evidence.attack"] == 1
    assert abs(progress.metrics["evidence.share"] - malicious / 10) < 0.1
    assert progress.reasons[9].startswith("honest with probability")


def test_at_first_the_better_half_is_kept_and_later_everybody_if_nobody_attacks() -> None:
    rng, memory = np.random.default_rng(1), dict[str, np.ndarray]()
    kept = []
    for number in range(1, 11):
        progress = judged(updates_of(10, 0, rng), memory, number)
        memory |= progress.notes
        kept.append(int(progress.kept.sum()))
    assert kept[:2] == [5, 5] and kept[3:] == [10] * 7


def test_a_sleeper_is_judged_anew() -> None:
    rng, memory, kept = np.random.default_rng(2), dict[str, np.ndarray](), []
    for number in range(1, 31):
        updates = updates_of(6, 4, rng)
        if number <= 10:
            updates[5:] = updates_of(5, 0, rng)
        progress = judged(updates, memory, number)
        memory |= progress.notes
        kept.append(progress.kept.tolist())
    assert kept[9] == [True] * 10
    assert kept[-1] == [True] * 6 + [False] * 4


def test_who_agrees_perfectly_does_not_raise_what_is_asked_of_others() -> None:
    """Attackers who know the server's data are wholly inside the cone; honest updates are mostly noise."""
    rng, memory = np.random.default_rng(7), dict[str, np.ndarray]()
    for number in range(1, 21):
        updates = updates_of(10, 0, rng) + torch.from_numpy(rng.normal(0, 1.5, (10, 6))).float()
        alone = judged(updates[:7], {}).notes[evidence.LEVEL]
        updates[7:] = torch.eye(2, 6)[0]
        progress = judged(updates, memory, number)
        assert number > 1 or progress.notes[evidence.LEVEL] < 2 * alone
        memory |= progress.notes
    assert memory["evidence.agreement"].max() <= evidence.ENOUGH_AGREEMENT
    assert memory[evidence.LEVEL] < 0.5, "the attackers' own agreement is 1"


def test_copies_share_one_vote() -> None:
    """Five copies of one honest client carry the geometric median away no farther than it goes itself."""
    rng, memory = np.random.default_rng(3), dict[str, np.ndarray]()
    honest = updates_of(5, 0, rng)
    for number in range(1, 6):
        memory |= judged(torch.vstack([honest, honest[:1].repeat(5, 1)]), memory, number).notes
    progress = judged(torch.vstack([honest, honest[:1].repeat(5, 1)]), memory, 6)
    alone = judged(honest, {}, 1)
    assert progress.kept.all() and progress.weights is not None
    assert float(progress.weights[[0, 5, 6, 7, 8, 9]].sum()) < 0.5
    assert alone.weights is not None


def test_lengths_are_bounded_from_both_sides_under_attack() -> None:
    rng = np.random.default_rng(4)
    updates = updates_of(10, 0, rng)
    updates[0] *= 1e6
    updates[1] *= 1e-6
    progress = judged(updates, {})
    usual = float(updates[2:].norm(dim=1).median())
    lengths = progress.updates.norm(dim=1)
    assert lengths.max() < 2 * usual and lengths.min() > usual / 4


def test_one_client_and_nothing_at_all() -> None:
    assert judged(torch.ones(1, 6), {}).kept.tolist() == [True]
    zeros = judged(torch.zeros(4, 6), {})
    assert torch.isfinite(zeros.step).all() and not zeros.step.any()


def test_ten_thousand_clients_seen_once() -> None:
    rng, memory = np.random.default_rng(5), dict[str, np.ndarray]()
    ids = np.arange(10_000, dtype=np.uint64)
    for place in range(3):
        memory |= evidence.MEANS[place].after({}, ids, rng.normal(1, 1, 10_000))
        memory |= evidence.COUNTS[place].after({}, ids, np.ones(10_000))
    progress = judged(updates_of(4, 6, rng), memory, 1000)
    assert int(progress.kept.sum()) == 5 and set(progress.kept[:4].tolist()) == {True}
    assert all("while little is known" in reason for reason in progress.reasons.values())


# ---- federations -----------------------------------------------------------------------------------------------------

FLIPPED = {
    "strategy.name": "evidence",
    "task.clients": 10,
    "client.per-round": 10,
    "client.epochs": 3,
    "rounds": 8,
    "task.partition": "iid",
    "attack.kind": "sign-flip",
    "attack.strength": 1.0,
    "attack.fraction": 0.6,
}


def test_a_majority_of_sign_flippers_is_found(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, **FLIPPED))
    malicious = set(read_json(folder.truth)["malicious"])
    last = [line for line in read_lines(folder.verdicts) if line["round"] == 8]
    assert {line["client"] for line in last if line["verdict"] == "filtered"} == malicious
    assert rounds(folder)[-1]["accuracy"] > 0.7


@pytest.mark.parametrize("killed", [3, 7])
def test_a_killed_run_resumes_exactly(tmp_path: Path, killed: int) -> None:
    whole = run(tiny(tmp_path, "whole", **FLIPPED))
    broken = tiny(tmp_path, "broken", **FLIPPED)
    with pytest.raises(Killed):
        run(broken, MortalGrid(broken, killed))
    resumed = run(tiny(tmp_path, "broken", **FLIPPED, **{"run.resume": True}))
    assert model_sha(resumed) == model_sha(whole)
    assert verdicts(resumed) == verdicts(whole)


def test_without_server_data_a_minority_is_found(tmp_path: Path) -> None:
    keys = {**FLIPPED, "attack.fraction": 0.3, "task.server-data": "none", "strategy.anchor": "majority"}
    folder = run(tiny(tmp_path, **keys))
    malicious = set(read_json(folder.truth)["malicious"])
    last = [line for line in read_lines(folder.verdicts) if line["round"] == 8]
    assert malicious == {line["client"] for line in last if line["verdict"] == "filtered"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task.server-data": "none"}, "strategy.anchor = server-data needs server data; set task.server-data"),
        ({"strategy.anchor": "me"}, "strategy.anchor = 'me': should be"),
        ({"strategy.memory-rounds": 0}, "strategy.memory-rounds = 0"),
        ({"strategy.gamma-schedule": "never"}, "strategy.gamma-schedule = 'never': should be"),
        ({"strategy.gamma-rounds": 0}, "strategy.gamma-rounds = 0"),
        ({"strategy.pre": "nnm"}, "strategy.pre = nnm: evidence looks at each client's own"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve(tiny(Path(), **{"strategy.name": "evidence", **keys}))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_it_is_a_flower_strategy_of_its_own_name() -> None:
    assert Evidence().name == "evidence" and not Evidence().is_mean()


@pytest.mark.parametrize(("clients", "seen"), [(3, True), (10, True), (12, False)])
def test_one_alone_is_an_attack_where_there_are_few(clients: int, seen: bool) -> None:
    """Of three hospitals, one ruins the model; of many clients, a single odd one is no reason to leave anybody out."""
    means = np.zeros((clients, 3))
    means[:, 0] = np.linspace(0.8, 1.2, clients)
    means[-1, 0] = -2.0
    found = tell_apart(means, np.full((clients, 3), 5.0), WITHIN)
    assert (found.significance > evidence.SURE) == seen and found.honest[-1] < 0.5 < found.honest[:-1].min()
