"""What a strategy remembers survives a checkpoint: it goes on exactly as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import nn

from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import reseed_globals
from thistle.flower_compat.messages import identify
from thistle.protocol.answer import Answer
from thistle.protocol.layout import Layout, to_record, to_state
from thistle.server.recording.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from thistle.strategies.build import make_strategy, resolve
from thistle.strategies.flower import Adapter
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import strategies
from thistle.tasks.dataset import Dataset, Images
from thistle.tasks.task import Task

CLIENTS = 7
PIXELS = np.random.default_rng(0).integers(0, 255, (12, 1, 2, 3), dtype=np.uint8)
IMAGES = Images(PIXELS, np.arange(12) % 3)
PARTITION: Any = None
TASK = Task(Dataset("tiny", ("a", "b", "c"), IMAGES, IMAGES), PARTITION, IMAGES)
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Linear(5, 3)),
    "buffers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
}
BESIDE_BUFFERS = [(name, "buffers") for name in ("rofsl", "median", "flwr-fedavgm", "flwr-fedadam")]


class Zoo(nn.Module):
    """Names whose order is not that of the alphabet: an order that a checkpoint could lose."""

    def __init__(self) -> None:
        super().__init__()
        self.zebra, self.ape, self.lion = nn.Linear(6, 3), nn.Linear(3, 6), nn.Linear(6, 3)


class Nodes:
    """As much of a grid as strategies need."""

    def get_node_ids(self) -> list[int]:
        return list(range(CLIENTS))


class Run:
    """A strategy that is run round after round with replies drawn from the round's number."""

    def __init__(self, name: str, network: nn.Module, **more: Any) -> None:
        identify()
        keys = {f"strategy.{key}": value for key, value in {"name": name, **more}.items()}
        sizes = {"client.per-round": CLIENTS, "task.clients": CLIENTS, "model.name": "mlp"}
        self.layout = Layout.of(network)
        with patch("thistle.strategies.build.build_model", lambda *_: network):
            self.strategy = make_strategy(resolve(Experiment.of({**sizes, **keys})), TASK, self.layout)

    def round(self, number: int, arrays: ArrayRecord) -> ArrayRecord:
        reseed_globals(0, "server", number)
        config: Any = ConfigRecord({"lr": 0.1})
        nodes: Any = Nodes()
        asked = list(self.strategy.configure_train(number, arrays, config, nodes))
        assert len(asked) == CLIENTS
        answers = [self.answer(client, number, arrays) for client in range(CLIENTS)]
        before = self.layout.vector(to_state(arrays)).numpy()
        updates = np.empty((CLIENTS, self.layout.size), np.float32)
        for row, answer in zip(updates, answers, strict=True):
            self.layout.write_change(answer.arrays, before, row)
        after, _ = self.strategy.next_model(number, answers, updates)
        assert after is not None
        return after

    def answer(self, client: int, number: int, arrays: ArrayRecord) -> Answer:
        generator = torch.Generator().manual_seed(1000 * number + client)
        state = to_state(arrays)
        for entry in self.layout.trained:
            state[entry.name] = state[entry.name] + 0.2 * torch.randn(entry.shape, generator=generator) + 0.15
        numbers: Any = {"num-examples": client + 1, "loss-before": 1.0, "loss-after": 0.5}
        return Answer(client, numbers, {name: tensor.numpy() for name, tensor in state.items()})


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name].numpy(), b[name].numpy()) for name in a)


def through_a_checkpoint(strategy: Pipeline | Adapter, folder: Path) -> dict[str, Any]:
    state = strategy.state_dict()
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    save_checkpoint(folder, Checkpoint(2, arrays, {name: value for name, value in state.items() if name not in arrays}))
    loaded = load_checkpoint(folder)
    assert loaded is not None
    return {**loaded.arrays, **loaded.plain}


@pytest.mark.parametrize(("name", "kind"), [*((name, "plain") for name in strategies()), *BESIDE_BUFFERS])
def test_every_strategy_goes_on_as_if_nothing_had_happened(name: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = NETWORKS[kind]()
    arrays = to_record(network.state_dict())
    options = {} if name.startswith("flwr-") else {"reputation": True}
    options |= {"noise": 0.0} if name == "dp-fedavg" else {}  # with noise, nothing may go by what clients sent
    whole = Run(name, network, **options)
    for number in (1, 2):
        arrays = whole.round(number, arrays)
    resumed = Run(name, network, **options)
    resumed.strategy.load_state_dict(through_a_checkpoint(whole.strategy, tmp_path))
    assert same(resumed.round(3, arrays), whole.round(3, arrays))


@pytest.mark.parametrize("name", ["flwr-fedadam", "flwr-fedyogi", "flwr-fedavgm", "centered-clipping", "foolsgold"])
def test_what_is_remembered_matters(name: str) -> None:
    """The proof above would be none for a strategy that remembers nothing."""
    network = NETWORKS["plain"]()
    arrays = to_record(network.state_dict())
    whole = Run(name, network)
    for number in (1, 2):
        arrays = whole.round(number, arrays)
    assert not same(Run(name, network).round(3, arrays), whole.round(3, arrays))


@pytest.mark.parametrize("name", ["flwr-fedavgm", "flwr-fedadam"])
def test_the_order_of_records_is_kept(name: str, tmp_path: Path) -> None:
    network = Zoo()
    arrays = to_record(network.state_dict())
    assert list(arrays) != sorted(arrays)
    whole = Run(name, network)
    arrays = whole.round(1, arrays)
    resumed = Run(name, network)
    found = through_a_checkpoint(whole.strategy, tmp_path)
    resumed.strategy.load_state_dict(dict(sorted(found.items(), reverse=True)))
    kept, current = (run.strategy.inner.current_arrays for run in (whole, resumed))  # type: ignore[union-attr]
    if isinstance(kept, ArrayRecord):
        assert same(current, kept)
    assert same(resumed.round(2, arrays), whole.round(2, arrays))


REPUTED = {"reputation", "reputation.ids"}


def test_a_pipelines_memory_holds_what_its_steps_note(tmp_path: Path) -> None:
    network = NETWORKS["plain"]()
    arrays = to_record(network.state_dict())
    wanted = {
        "centered-clipping": {"centre", *REPUTED},
        "foolsgold": {f"foolsgold/{client}" for client in range(CLIENTS)} | REPUTED,
        "fltrust": REPUTED,
        "zeno": REPUTED,
    }
    for name, keys in wanted.items():
        run = Run(name, network, reputation=True)
        after = run.round(1, arrays)
        assert isinstance(run.strategy, Pipeline) and run.strategy.memory.keys() == keys
        fresh = Run(name, network, reputation=True).strategy
        fresh.load_state_dict(through_a_checkpoint(run.strategy, tmp_path / name))
        assert isinstance(fresh, Pipeline) and fresh.memory.keys() == keys
        assert all(np.array_equal(fresh.memory[key], run.strategy.memory[key]) for key in keys)
        if name == "centered-clipping":
            centre = run.layout.vector(to_state(after)) - run.layout.vector(to_state(arrays))
            np.testing.assert_allclose(run.strategy.memory["centre"], centre, atol=1e-6)


def test_nothing_remembered_is_nothing_put_back() -> None:
    network = NETWORKS["plain"]()
    fresh = Run("rfa", network).strategy
    assert fresh.state_dict() == {}
    other = Run("rfa", network).strategy
    other.load_state_dict(fresh.state_dict())
    assert isinstance(other, Pipeline) and other.memory == {}


def test_arrays_by_number_come_back_by_number() -> None:
    one, other = (Run("flwr-fedavg", NETWORKS["plain"]()).strategy for _ in range(2))
    one.inner.seen = {3: np.ones(2), 10: np.zeros(1)}  # type: ignore[union-attr]
    other.load_state_dict(one.state_dict())
    seen = other.inner.seen  # type: ignore[union-attr]
    assert sorted(seen) == [3, 10] and seen[3].tolist() == [1.0, 1.0]
