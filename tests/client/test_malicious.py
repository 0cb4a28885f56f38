"""Malicious clients at work: through the inline engine, and one message at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from tests.federations import TINY, model_sha, run, tiny
from thistle.attacks.poisoning import search
from thistle.attacks.poisoning.alie import Alie
from thistle.attacks.poisoning.optimal import Optimal
from thistle.attacks.poisoning.parts import Facts
from thistle.attacks.roles import SIMULATED, attackers, panel
from thistle.client import malicious
from thistle.client.app import app, role
from thistle.client.memory import write_memory
from thistle.client.work import Work
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import read_json
from thistle.flower_compat.messages import identify
from thistle.protocol.layout import Layout, to_record, to_state
from thistle.protocol.records import MEMORY
from thistle.server.transport.memories import Memories
from thistle.server.transport.reply import Reply
from thistle.tasks.models import build_model
from thistle.tasks.task import cached_task

SUBMITTED: dict[str, Any] = {**TINY, "attack.kind": "scale", "attack.fraction": 1.0, "attack.strength": 50.0}
EVIL = {"role": "malicious", "attack": "sign-flip", "attack-strength": 2.0}


def sha(out: Path, name: str, kind: str = "none", **more: Any) -> str:
    """The final model of two rounds in which half of the clients attack; no reply may be refused."""
    attack = {"attack.kind": kind, "attack.fraction": 0.5 if kind != "none" else 0.0}
    folder = run(tiny(out, name, **{"rounds": 2, **attack, **more}))
    summary = read_json(folder.summary)
    assert (summary["rejected"], summary["failed"]) == (0, 0)
    return model_sha(folder)


@pytest.fixture(scope="module")
def honest_sha(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sha(tmp_path_factory.mktemp("honest"), "run")


class Client:
    """One client of an experiment, asked for its update in one round."""

    def __init__(self, flat: dict[str, Any], node_config: dict[str, Any] | None = None) -> None:
        identify()
        self.experiment = Experiment.of(flat)
        self.node_config = {SIMULATED: True} if node_config is None else node_config
        task = cached_task(self.experiment.task, self.experiment.seed)
        self.model = build_model(self.experiment.network, task.shape, task.classes, self.experiment.seed)
        self.layout = Layout.of(self.model)
        self.state = RecordDict()
        """Of a real node."""

    def content(self, number: int = 1) -> RecordDict:
        sent = to_record(self.model.state_dict())
        return RecordDict({"arrays": sent, "config": ConfigRecord({"server-round": number, "lr": 0.1})})

    def role(self, client: int) -> str:
        return role(Work.of(self.content(), client, self.experiment, self.node_config))

    def reply(self, client: int, number: int = 1, state: RecordDict | None = None) -> RecordDict:
        content = self.content(number)
        node_config = {**self.node_config, "partition-id": client}
        kept = self.state if state is None else state
        context = Context(1, client, node_config, kept, dict(self.experiment.flat()))
        return app(Message(content, client, "train"), context).content

    def update(self, client: int, number: int = 1, state: RecordDict | None = None) -> Tensor:
        got = to_state(self.reply(client, number, state).array_records["arrays"])
        return self.layout.vector(got) - self.layout.vector(self.model.state_dict())


ALL_KNOWING = {"attack.omniscient": True, "strategy.name": "rofsl", "task.server-data": "rendered"}
REMEMBERING: dict[str, Any] = {"rounds": 4, "attack.every": 2}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("alie", {}),
        ("mix", {}),
        ("dba", {}),
        ("neurotoxin", {}),
        ("a3fl", {}),
        ("label-flip-dynamic", {}),
        ("optimal-alie", {}),
        ("optimal-ipm", {"attack.rule": "median"}),
        ("white-box", ALL_KNOWING),
        ("white-box", {**ALL_KNOWING, "strategy.theta": "auto"}),
        ("poisoned-fl", REMEMBERING),
        ("free-rider", {"rounds": 4}),
        ("scale", {"rounds": 4, "attack.honest-first": 1}),
    ],
)
def test_packing_and_resuming_do_not_change_the_model(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    first = sha(tmp_path, "first", kind, **more)
    assert first == sha(tmp_path, "packed", kind, **more, **{"runtime.workers": 1})
    assert first != sha(tmp_path, "other", kind, **more, seed=1)
    sha(tmp_path, "halves", kind, **{**more, "rounds": more.get("rounds", 2) // 2})
    malicious._last_panel.clear()
    search._last.clear()
    assert first == sha(tmp_path, "halves", kind, **more, **{"run.resume": True})


@pytest.mark.parametrize("kind", ["poisoned-fl", "free-rider"])
def test_what_attackers_remember_matters(kind: str, tmp_path: Path) -> None:
    """From the second round on they send something else than those who have forgotten the first."""
    lasting = sha(tmp_path, "lasting", kind, **{"rounds": 3})
    sha(tmp_path, "forgetting", kind, **{"rounds": 2})
    kept = Memories.restore
    try:
        Memories.restore = lambda self, state: None  # type: ignore[method-assign]
        assert lasting != sha(tmp_path, "forgetting", kind, **{"rounds": 3, "run.resume": True})
    finally:
        Memories.restore = kept  # type: ignore[method-assign]


def test_attackers_may_behave_until_they_are_trusted(tmp_path: Path) -> None:
    """All are asked in every round: honest twice, malicious from the third round on."""
    everybody = {"task.clients": 4, "client.per-round": 4, "evaluate.every": 1}
    for rounds, same in ((2, True), (3, False)):
        honest = sha(tmp_path, f"honest-{rounds}", rounds=rounds, **everybody)
        late = sha(tmp_path, f"late-{rounds}", "scale", rounds=rounds, **everybody, **{"attack.honest-first": 2})
        assert (honest == late) is same


def test_each_attacker_counts_for_itself() -> None:
    """An attacker that nobody has asked so far behaves when others do not any more."""
    federation = Client({**TINY, "attack.kind": "scale", "attack.clients": "0,1", "attack.honest-first": 1})
    memories = Memories(federation.experiment, asked={0: 1})

    def role_of(client: int) -> str:
        [asked] = memories.add([Message(federation.content(3), client, "train")], dict)
        return role(Work.of(asked.content, client, federation.experiment, federation.node_config))

    assert (role_of(0), role_of(1), role_of(2)) == ("malicious", "honest", "honest")


@pytest.mark.parametrize("order", [(0, 1, 3), (3, 1, 0)])
def test_the_lowest_attackers_memory_is_kept_in_whatever_order_they_reply(order: tuple[int, ...]) -> None:
    """Client 0 has nothing to remember, client 3 is honest."""
    federation = Client({**TINY, "attack.kind": "poisoned-fl", "attack.clients": "0-2"})
    memories = Memories(federation.experiment)
    notes = {one: {"note": torch.tensor(float(one))} for one in (1, 2, 3)}
    coming = [Reply(one, "1", {MEMORY: write_memory({}, notes.get(one, {}))}) for one in (*order, 2)]
    assert not any(reply.records for reply in memories.take(coming))
    assert {name: array.tolist() for name, array in memories.common.items()} == {"note": 1.0}
    assert list(memories.state()) == ["note", "asked/0", "asked/1", "asked/2"]


def test_all_colluders_share_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    original = Optimal.__call__
    monkeypatch.setattr(Optimal, "__call__", lambda *given: searched.append(1) or original(*given))
    colluders = Client({**TINY, "attack.kind": "optimal-ipm", "attack.clients": "1,2,4"})
    sent = [colluders.update(client) for client in (1, 2, 4)]
    assert len(searched) == 1
    assert torch.equal(sent[0], sent[1]) and torch.equal(sent[0], sent[2])
    colluders.update(1, number=2)
    assert len(searched) == 2


@pytest.mark.parametrize(
    "kind",
    [
        "sign-flip",
        "label-flip",
        "gaussian",
        "zero",
        "scale",
        "backdoor",
        "ipm",
        "min-max",
        "min-sum",
        "adaptive",
        "fang-trim",
        "fang-krum",
        "label-flip-targeted",
        "label-flip-dynamic",
        "constrain-and-scale",
        "dba",
        "neurotoxin",
        "a3fl",
        "optimal-alie",
        "optimal-ipm",
        "poisoned-fl",
        "free-rider",
    ],
)
def test_every_attack_runs_and_matters(kind: str, tmp_path: Path, honest_sha: str) -> None:
    assert sha(tmp_path, kind, kind) != honest_sha


def test_attackers_are_honest_outside_of_their_rounds() -> None:
    flat = {**TINY, "attack.kind": "scale", "attack.clients": "0", "attack.start": 2, "attack.stop": 2}
    attacker, honest = Client(flat), Client(TINY)
    same = [torch.equal(attacker.update(0, number), honest.update(0, number)) for number in (1, 2, 3)]
    assert same == [True, False, True]


def test_mimic_copies_one_honest_client() -> None:
    federation = Client({**TINY, "attack.kind": "mimic", "attack.fraction": 0.5, "attack.omniscient": True})
    attack = federation.experiment.attack
    [(copied, _), *_] = panel(attack, 0, 12, 0)
    honest = federation.update(copied)
    for attacker in attackers(attack, 12, 0):
        assert torch.allclose(federation.update(attacker), honest, atol=1e-6)


def test_sign_flip_is_the_honest_update_turned_round() -> None:
    """Same data, same batches: the randomness is that of (seed, round, client) alone."""
    evil = Client({**TINY, "attack.kind": "sign-flip", "attack.clients": "2", "attack.strength": 3.0})
    assert torch.allclose(evil.update(2), -3 * Client(TINY).update(2), atol=1e-6)
    assert torch.equal(evil.update(1), Client(TINY).update(1))


def test_colluders_send_the_same_from_the_panels_updates() -> None:
    colluders = Client({**TINY, "attack.kind": "alie", "attack.clients": "1,2,4", "attack.strength": 1.5})
    rows = torch.stack([Client(TINY).update(client) for client in (1, 2, 4)])
    for client in (1, 2, 4):
        assert torch.allclose(colluders.update(client), Alie(strength=1.5)(rows, Facts(10, 4, 1)), atol=1e-5)


def test_a_panel_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    original = malicious._honest_update
    monkeypatch.setattr(malicious, "_honest_update", lambda work: trained.append(work.client) or original(work))
    malicious._last_panel.clear()
    colluders = Client({**TINY, "attack.kind": "ipm", "attack.clients": "1,2,4"})
    for client in (1, 2, 4):
        colluders.update(client)
    assert sorted(trained) == [1, 2, 4]
    colluders.update(1, number=2)
    assert len(trained) == 6


def test_a_backdoor_is_boosted() -> None:
    flat = {**TINY, "attack.kind": "backdoor", "attack.clients": "0"}
    once, thrice = (Client({**flat, "attack.boost": boost}).update(0) for boost in (1.0, 3.0))
    assert torch.allclose(thrice, 3 * once, atol=1e-5)


def test_buffers_are_those_of_training() -> None:
    flat = {**TINY, "model.name": "vgg8", "task.partition": "resample", "task.client-size": 4}
    honest = Client(flat).reply(0).array_records["arrays"]
    evil = Client({**flat, "attack.kind": "ipm", "attack.clients": "0,1"}).reply(0).array_records["arrays"]
    for entry in Client(flat).layout.buffers:
        assert honest[entry.name].data == evil[entry.name].data


def test_constrained_updates_are_shorter() -> None:
    flat = {**TINY, "attack.kind": "constrain-and-scale", "attack.clients": "0", "attack.boost": 1.0}
    free, held = (Client({**flat, "attack.alpha": alpha}).update(0) for alpha in (1.0, 0.2))
    plain = Client({**TINY, "attack.kind": "backdoor", "attack.clients": "0", "attack.boost": 1.0}).update(0)
    assert torch.allclose(free, plain, atol=1e-6)
    assert float(held.norm()) < 0.5 * float(free.norm())
    shortened = Client({**flat, "attack.alpha": 1.0, "attack.radius": 0.1}).update(0)
    assert torch.allclose(shortened, 0.1 * free / free.norm(), atol=1e-6)


class TestDeployment:
    """On a node with a role, the node config decides alone."""

    def test_neurotoxin_remembers_the_last_model_and_spares_what_moved(self) -> None:
        node = {"role": "malicious", "attack": "neurotoxin", "attack-spared": 0.25, "attack-boost": 1.0}
        evil = Client(TINY, node)
        first = evil.update(3)
        backdoor = Client(TINY, {"role": "malicious", "attack": "backdoor", "attack-boost": 1.0})
        assert torch.equal(first, backdoor.update(3))
        generator = torch.Generator().manual_seed(0)
        step = torch.randn(len(first), generator=generator)
        moved = evil.layout.vector(evil.model.state_dict()) + 0.01 * step
        for client in (evil, backdoor):
            client.model.load_state_dict(client.layout.state(moved, client.model.state_dict()))
        second, free = evil.update(3, number=2), backdoor.update(3, number=2)
        spared = step.abs() >= step.abs().sort(descending=True).values[len(step) // 4 - 1]
        assert int((second[spared] != 0).sum()) == 0
        assert float((second[~spared] != 0).float().mean()) > 0.5
        assert not torch.allclose(second[~spared], free[~spared], atol=1e-6)  # the others make up for it

    def test_a3fl_goes_on_from_its_own_trigger(self) -> None:
        evil = Client(TINY, {"role": "malicious", "attack": "a3fl"})
        evil.update(3)
        [memory] = evil.state.array_records.values()
        first = memory["note/pattern"].numpy()
        evil.update(3, number=2)
        [memory] = evil.state.array_records.values()
        assert 0.15 < abs(first - 0.5).max() < 0.41
        assert abs(memory["note/pattern"].numpy() - 0.5).max() > abs(first - 0.5).max()

    def test_no_experiment_makes_an_honest_node_attack(self) -> None:
        node = Client(SUBMITTED, {"role": "honest"})
        assert node.role(3) == "honest"
        assert torch.equal(node.update(3), Client(TINY).update(3))

    def test_nor_one_that_was_started_without_a_role(self) -> None:
        for config in ({}, {"partition-id": 0, "num-partitions": 3}):
            assert torch.equal(Client(SUBMITTED, config).update(3), Client(TINY).update(3))

    def test_a_malicious_node_follows_its_own_config(self) -> None:
        expected = -2 * Client(TINY).update(3)
        for flat in (TINY, SUBMITTED, {**SUBMITTED, "attack.start": 2}):
            assert torch.allclose(Client(flat, EVIL).update(3), expected, atol=1e-6)

    def test_a_lone_colluder_trains_its_own_data_again(self) -> None:
        node = {"role": "malicious", "attack": "alie", "attack-strength": 1.0}
        alone = Client(SUBMITTED, node).update(3)
        own = Client(TINY).update(3)
        assert 0.5 < float(torch.cosine_similarity(alone, own, dim=0)) < 0.9999
        assert torch.equal(alone, Client(TINY, node).update(3))

    def test_an_attacker_remembers_in_its_nodes_state(self) -> None:
        """Asked twice with one Context: a free rider sends the model's own step again, less of it without noise."""
        node = Client(TINY, {"role": "malicious", "attack": "free-rider", "attack-strength": 0.0})
        state = RecordDict()
        assert float(node.update(3, 1, state).norm()) == 0.0
        before = node.layout.vector(node.model.state_dict())
        with torch.no_grad():
            for parameter in node.model.parameters():
                parameter.add_(0.01)
        assert torch.allclose(node.update(3, 2, state), node.layout.vector(node.model.state_dict()) - before, atol=1e-6)
        assert float(node.update(3, 2).norm()) == 0.0, "another node's state knows nothing of it"
        assert "memory" not in node.reply(3, 3, state)
