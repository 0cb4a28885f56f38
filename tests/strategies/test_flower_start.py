"""Every strategy of ours in Flower's own `strategy.start()`, and the same model as in our loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from tests.federations import model_sha, run, tiny
from tests.flower_app import accuracy, digits, initial, make_app, plain, with_batch_norm
from tests.flower_grid import MemoryGrid
from thistle import Guarded, UserError
from thistle.client.app import app as thistles_clients
from thistle.client.mods import poison
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import sha256, to_record, to_state
from thistle.strategies import (
    DSVD,
    FSL,
    RFA,
    CalFAT,
    CenteredClipping,
    FedAvg,
    FLTrust,
    FoolsGold,
    Krum,
    Pipeline,
    RoFSL,
    Scaffold,
    setting,
    strategy,
)
from thistle.strategies.build import needs_server_data, resolve
from thistle.strategies.registry import by_class_name
from thistle.tasks.models import build_model
from thistle.tasks.task import Task, prepare_task
from thistle.tasks.training import pick_device, to_tensors

NODES = 8
OURS: dict[str, Any] = {cls.__name__: cls for cls in by_class_name().values()}
OURS["CalFATOverRoFSL"] = CalFAT.over(RoFSL)
Make = Callable[..., Pipeline]


def server_digits(loader: bool = False) -> Any:
    """Sixty digits that no node has and no test asks for."""
    x, y = (part[1140:1200] for part in digits())
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True) if loader else (x, y)


def bare(content: RecordDict) -> RecordDict:
    """A reply with nothing but the model and the number of examples, as in Flower's own examples."""
    (arrays,), (metrics,) = content.array_records.items(), content.metric_records.values()
    return RecordDict({arrays[0]: arrays[1], "metrics": MetricRecord({"num-examples": metrics["num-examples"]})})


WITH_BUFFERS: dict[str, dict[str, Any]] = {"DPFedAvg": {"noise": 0.0}}
"""With noise it refuses networks with batch norm, whose statistics no noise covers."""


def lr() -> ConfigRecord:
    return ConfigRecord({"lr": 0.2})


@pytest.mark.parametrize("evaluation", [True, False], ids=["evaluation", "no-evaluation"])
@pytest.mark.parametrize("name", OURS)
def test_every_strategy_learns_in_flowers_own_loop(name: str, evaluation: bool) -> None:
    """Batch norm, 64-bit ids, replies of the barest kind; with client evaluation the server's data are a loader."""
    grid = MemoryGrid(make_app(with_batch_norm, train_reply=bare), NODES)
    data = {"model": with_batch_norm(), "server_data": server_digits(loader=evaluation)}
    made = OURS[name](**data, fraction_evaluate=float(evaluation), **WITH_BUFFERS.get(name, {}))
    seen: list[float] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(accuracy(arrays, with_batch_norm))
        return MetricRecord({"accuracy": seen[-1]})

    result = made.start(grid, initial(with_batch_norm), num_rounds=6, train_config=lr(), evaluate_fn=evaluate)
    assert len(seen) == 7 and seen[0] < 0.2
    assert seen[-1] > (0.5 if name in ("ServerAlone", "FoolsGold", "CenteredClipping") else 0.75)
    asked = len([m for m in grid.requests if m.metadata.message_type == "evaluate"])
    assert asked == len(result.evaluate_metrics_clientapp) * NODES == (6 * NODES if evaluation else 0)
    kinds = {key: array.numpy().dtype for key, array in result.arrays.items()}
    assert kinds == {key: array.numpy().dtype for key, array in initial(with_batch_norm).items()}
    assert set(made.verdicts) == set(grid.ids)


@pytest.mark.parametrize("name", OURS)
def test_without_server_data_where_none_is_needed_and_a_clear_word_where_it_is(name: str) -> None:
    made = OURS[name]()
    grid = MemoryGrid(make_app(train_reply=bare), NODES)
    if made.server_data_for():
        with pytest.raises(UserError, match=rf"needs server data: {type(made).__name__}\(server_data=\(x, y\), model="):
            made.start(grid, initial(), num_rounds=1, train_config=lr())
        assert not grid.requests
    else:
        assert accuracy(made.start(grid, initial(), num_rounds=5, train_config=lr()).arrays) > 0.3


# ---- the same round as in our own loop --------------------------------------------------------------------------

NETS = """
from torch import nn
def normed(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
"""
SIZES = {"task.clients": 8, "client.per-round": 8, "rounds": 3, "evaluate.every": 3, "model.name": "nets:normed"}
SAME_ROUND: dict[str, dict[str, Any]] = {
    "DSVD": {"exchange": "full"},
    "FedSVD": {"exchange": "full"},
    "CalFATOverRoFSL": {"server_objective": "standard"},
    **WITH_BUFFERS,
}
"""Only our clients can send factors, and only our server learns as CalFAT's clients do: the same round is the one with
whole models, and a server that learns in the ordinary way."""


def over_flower(experiment: Experiment, made: Pipeline, task: Task) -> str:
    """The same clients, as nodes with 64-bit ids whose order is that of the clients'."""
    grid = MemoryGrid(thistles_clients, experiment.task.clients)
    for client, node in enumerate(sorted(grid.ids)):
        own = {"partition-id": client, "simulated": True}
        grid.contexts[node] = Context(1, node, own, RecordDict(), dict(experiment.flat()))  # type: ignore[arg-type]
    network = build_model(experiment.network, task.shape, task.classes, experiment.seed)
    facts = {"classes": list(task.dataset.classes), "shape": list(task.shape)}
    config = ConfigRecord({"lr": experiment.client.lr, **facts})
    result = made.start(grid, to_record(network.state_dict()), experiment.rounds, train_config=config)
    return sha256(to_state(result.arrays))


@pytest.mark.parametrize("name", OURS)
def test_the_same_model_bit_for_bit_as_in_our_own_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = SAME_ROUND.get(name, {})
    keys: dict[str, Any] = {
        "strategy.name": OURS[name].name,
        **{f"strategy.{k.replace('_', '-')}": v for k, v in options.items()},
    }
    if name == "CalFATOverRoFSL":
        keys["strategy.base"] = "rofsl"
    experiment = resolve(tiny(tmp_path, **SIZES, **keys))
    ours = model_sha(run(experiment))

    task = prepare_task(experiment.task, experiment.seed, needs_server_data(experiment))
    client, images = experiment.client, task.server_images
    made = OURS[name](
        **options,
        model=build_model(experiment.network, task.shape, task.classes, experiment.seed),
        server_data=None if images is None else to_tensors(images, pick_device("cpu")),
        weight_decay=client.weight_decay,
        local_epochs=client.epochs,
        local_batch_size=client.batch_size,
        fraction_evaluate=0.0,
    )
    assert over_flower(experiment, made, task) == ours


# ---- going on ---------------------------------------------------------------------------------------------------


def noisy_app() -> ClientApp:
    """Nodes that train on another part of their data in each round, by the round's number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(message.content["config"]["server-round"])  # type: ignore[index, arg-type]
        seed = 100 * number + int(context.node_config["partition-id"])
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        generator = torch.Generator().manual_seed(seed)
        for name, values in state.items():
            if values.dtype.is_floating_point and "running" not in name:
                state[name] = values + 0.05 * torch.randn(values.shape, generator=generator)
        metrics = MetricRecord({"num-examples": 10 + seed % 7, "loss-before": 1.0, "loss-after": seed % 5 / 5})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("name", OURS)
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    options = {"reputation": True, "fraction_train": 0.9, "min_train_nodes": 7, "fraction_evaluate": 0.0}

    def make() -> Pipeline:
        data = {"model": with_batch_norm(), "server_data": server_digits(), "server_batch_size": 16}
        return OURS[name](**data, **options, **WITH_BUFFERS.get(name, {}))  # type: ignore[no-any-return]

    def go(made: Pipeline, arrays: ArrayRecord, rounds: int) -> ArrayRecord:
        return made.start(MemoryGrid(noisy_app(), NODES), arrays, rounds, train_config=lr()).arrays

    whole = go(make(), initial(with_batch_norm), 4)
    first, second = make(), make()
    half = go(first, initial(with_batch_norm), 2)
    np.savez(tmp_path / "state.npz", **first.state_dict())  # type: ignore[arg-type]
    second.load_state_dict(np.load(tmp_path / "state.npz"))
    assert sha256(to_state(go(second, half, 2))) == sha256(to_state(whole))
    assert sha256(to_state(go(first, half, 2))) == sha256(to_state(whole)), "nor does the same object forget"
    forgetful = go(make(), half, 2)
    assert sha256(to_state(forgetful)) != sha256(to_state(whole)), "the state is what makes it so"


# ---- other people's apps -----------------------------------------------------------------------------------------


class TokenNet(nn.Module):
    """Integers in, one logit out; a weight that is transposed in memory, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(20, 6)
        self.hidden = nn.Linear(6, 5)
        self.hidden.weight = nn.Parameter(torch.randn(6, 5).t())
        self.out = nn.Linear(5, 1).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(self.embedding(tokens).mean(1)))).squeeze(1)  # type: ignore[no-any-return]


def tokens(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Whether the sequence holds more of the first ten words than of the others."""
    x = torch.randint(20, (count, 9), generator=torch.Generator().manual_seed(seed))
    return x, ((x < 10).sum(1) > 4).float()


def token_app(hostile: tuple[int, ...] = ()) -> ClientApp:
    app = ClientApp(mods=[poison("sign-flip", strength=5.0, partitions=hostile)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = TokenNet()
        model.load_state_dict(message.content["model"].to_torch_state_dict())  # type: ignore[union-attr]
        x, y = tokens(int(context.node_config["partition-id"]), 60)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
        for _ in range(20):
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            optimizer.step()
        numbers = {"tokens": x.numel(), "loss": loss.item(), "per-class": [1.0, 2.0]}
        reply = {"model": ArrayRecord(model.state_dict()), "figures": MetricRecord(numbers)}
        return Message(RecordDict(reply), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        assert "server-round" in message.content["cfg"]
        model = TokenNet()
        model.load_state_dict(message.content["model"].to_torch_state_dict())  # type: ignore[union-attr]
        x, y = tokens(int(context.node_config["partition-id"]), 60)
        right = ((model(x) > 0) == (y > 0)).float().mean().item()
        numbers = MetricRecord({"right": right, "tokens": x.numel()})
        return Message(RecordDict({"figures": numbers}), reply_to=message)

    return app


KEYS = {"arrayrecord_key": "model", "configrecord_key": "cfg", "weighted_by_key": "tokens"}


def token_accuracy(arrays: ArrayRecord) -> float:
    model, (x, y) = TokenNet(), tokens(999, 500)
    model.load_state_dict(arrays.to_torch_state_dict())
    return float(((model(x) > 0) == (y > 0)).float().mean())


@pytest.mark.parametrize("guarded", [False, True], ids=["alone", "guarded"])
def test_another_app_with_its_own_keys_loss_and_inputs(guarded: bool) -> None:
    made: Any = RoFSL(
        model=TokenNet(),
        server_data=DataLoader(TensorDataset(*tokens(50, 40)), batch_size=7),
        loss=binary_cross_entropy_with_logits,
        lr=0.1,
        **KEYS,
    )
    whole = Guarded(made) if guarded else made
    grid, start = MemoryGrid(token_app((0, 4, 7)), 10), ArrayRecord(TokenNet().state_dict())
    result = whole.start(grid, start, num_rounds=15)
    assert token_accuracy(result.arrays) > 0.85
    frozen = result.arrays["out.weight"].numpy()
    assert np.array_equal(frozen, start["out.weight"].numpy()), "nobody trains it"
    assert result.evaluate_metrics_clientapp[15]["right"] > 0.85  # type: ignore[operator]
    average = result.train_metrics_clientapp[1]
    assert average["per-class"] == [1.0, 2.0] and "server.step" in average
    if not guarded:
        hostile = [grid.ids[index] for index in (0, 4, 7)]
        assert all(made.verdicts[node].verdict == "filtered" for node in hostile)


def test_transposed_weights_are_read_as_they_are_meant() -> None:
    """What np.save writes for them is in Fortran order."""
    start, once = ArrayRecord(TokenNet().state_dict()), ClientApp()
    assert b"'fortran_order': True" in start["hidden.weight"].data[:128]

    @once.train()
    def train(message: Message, context: Context) -> Message:
        state = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        state["hidden.weight"] = state["hidden.weight"] + torch.arange(30.0).reshape(6, 5).t()
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    made = RFA(fraction_evaluate=0.0)
    after = made.start(MemoryGrid(once, 3), start, num_rounds=1).arrays["hidden.weight"].numpy()
    wanted = TokenNet().hidden.weight.detach().numpy() + np.arange(30.0, dtype=np.float32).reshape(6, 5).T
    np.testing.assert_allclose(after, wanted, rtol=1e-6)


class FlatMedian(Pipeline):
    """A rule of a user's own: nothing but the rule."""

    def rule(self, updates: Tensor, weights: Tensor) -> Tensor:
        return updates.median(dim=0).values


@strategy("weighted-median-of-two", "nobody")
class Between(Pipeline):
    """A rule of a user's own with a setting."""

    part: float = setting("between the mean and the median", default=0.5)

    def rule(self, updates: Tensor, weights: Tensor) -> Any:
        return self.part * updates.mean(0).numpy() + (1 - self.part) * np.median(updates.numpy(), axis=0)


@pytest.mark.parametrize("make", [FlatMedian, Between], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("options", [{}, {"pre": "nnm"}, {"gamma": 0.5, "filter": "loss"}], ids=str)
def test_a_rule_of_a_users_own(make: Make, options: dict[str, Any]) -> None:
    data = {"model": with_batch_norm(), "server_data": server_digits()} if "gamma" in options else {}
    made = make(**options, **data)
    grid = MemoryGrid(make_app(with_batch_norm, train_reply=bare), NODES)
    result = made.start(grid, initial(with_batch_norm), num_rounds=6, train_config=lr())
    assert accuracy(result.arrays, with_batch_norm) > 0.75


class Wrong(Pipeline):
    """torch.median's answer is a pair."""

    def rule(self, updates: Tensor, weights: Tensor) -> Any:
        return updates.median(dim=0)


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoFSL(server_data=server_digits()), "server_data: RoFSL needs the network too, as model=…"),
        (lambda: RoFSL(model=plain()), "needs server data: RoFSL(server_data=(x, y), model=…)"),
        (
            lambda: RoFSL(model=with_batch_norm(), server_data=server_digits()),
            "RoFSL: the model's 9 arrays do not match the 2 that are sent: give the model they belong to",
        ),
        (
            lambda: FLTrust(model=nn.Linear(64, 9), server_data=server_digits()),
            "model: its array weight has the shape (9, 64), but (10, 64) was sent: give the network that the arrays "
            "belong to",
        ),
        (lambda: RoFSL(model=plain(), server_data=7), "server_data: should be tensors (x, y), or a DataLoader of such"),
        (
            lambda: RoFSL(model=plain(), server_data=(torch.zeros(3, 64), torch.zeros(2))),
            "server_data: 3 inputs and 2 labels; should be equally many, at least one",
        ),
        (Wrong, "Wrong: its rule should return a tensor of 650 values, or an Aggregate, not median"),
    ],
)
def test_a_mistake_is_named_in_one_line(make: Make, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make().start(MemoryGrid(make_app(), 4), initial(), num_rounds=1, train_config=lr())
    assert message in str(caught.value)


@pytest.mark.parametrize("make", [RoFSL, FSL, FLTrust, Scaffold], ids=lambda cls: cls.__name__)
def test_the_learning_rate_is_asked_for_where_it_is_needed(make: Make) -> None:
    needed = {"model": plain(), "server_data": server_digits()}
    name = make.__name__
    with pytest.raises(UserError, match=rf"^{name} needs the clients\' learning rate: {name}\(lr=…\), or train_config"):
        make(**needed).start(MemoryGrid(make_app(), 4), initial(), num_rounds=1)
    for made, config in ((make(**needed, lr=0.2), None), (make(**needed), lr())):
        made.start(MemoryGrid(make_app(), 4), initial(), num_rounds=1, train_config=config)


def test_a_reply_of_another_shape_is_named() -> None:
    def broken(content: RecordDict) -> RecordDict:
        content["arrays"] = ArrayRecord({"weight": torch.zeros(1), "bias": torch.zeros(10)})
        return content

    grid = MemoryGrid(make_app(train_reply=broken), 2)
    with pytest.raises(ValueError, match=r"node \d+: its array weight has the shape \(1,\), not \(10, 64\)"):
        FedAvg().start(grid, initial(), num_rounds=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Krum(malicious=3), "Krum: malicious = 3: krum needs at least 9 updates per round, but gets 4"),
        (lambda: CenteredClipping(tau=0.0), "CenteredClipping: tau = 0.0: centered clipping needs a radius above 0"),
        (lambda: DSVD(pre="nnm"), "DSVD: pre = nnm: dsvd looks at each client's own update; use none"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anybody_trains(make: Make, message: str) -> None:
    grid = MemoryGrid(make_app(), 4)
    with pytest.raises(UserError) as caught:
        make().start(grid, initial(), num_rounds=1)
    assert str(caught.value) == message and not grid.requests


def test_where_too_few_reply_the_model_stays() -> None:
    def raises(content: RecordDict) -> RecordDict:
        raise RuntimeError("out of memory")

    grid = MemoryGrid(lambda index: make_app(train_reply=raises) if index < 4 else make_app(), NODES)
    result = Krum(fraction_evaluate=0.0).start(grid, initial(), num_rounds=2)
    assert sha256(to_state(result.arrays)) == sha256(to_state(initial()))
    assert len(grid.requests) == 2 * NODES


@pytest.mark.parametrize("make", [RoFSL, DSVD, Krum, FedAvg], ids=lambda cls: cls.__name__)
def test_a_reply_that_is_not_finite_is_left_out(make: Make) -> None:
    def ruined(content: RecordDict) -> RecordDict:
        state = content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        content["arrays"] = ArrayRecord({**state, "0.weight": torch.full_like(state["0.weight"], torch.nan)})
        return content

    grid = MemoryGrid(lambda i: make_app(with_batch_norm, train_reply=ruined if i == 2 else lambda c: c), NODES)
    made = make(model=with_batch_norm(), server_data=server_digits())
    result = made.start(grid, initial(with_batch_norm), num_rounds=6, train_config=lr())
    assert accuracy(result.arrays, with_batch_norm) > 0.75
    rejected = {node: verdict.reason for node, verdict in made.verdicts.items() if verdict.verdict == "rejected"}
    assert rejected == {grid.ids[2]: "its update is not finite"}


@pytest.mark.parametrize("batch", [59, 1, 180])
def test_batch_norm_never_sees_a_single_example_of_the_servers(batch: int) -> None:
    made = RoFSL(model=with_batch_norm(), server_data=server_digits(), server_batch_size=batch)
    grid = MemoryGrid(make_app(with_batch_norm), NODES)
    result = made.start(grid, initial(with_batch_norm), num_rounds=6, train_config=lr())
    assert accuracy(result.arrays, with_batch_norm) > 0.75
    one = RoFSL(model=with_batch_norm(), server_data=tuple(part[:1] for part in server_digits()))
    with pytest.raises(UserError, match="server_data: batch norm needs at least two examples"):
        one.start(grid, initial(with_batch_norm), num_rounds=1, train_config=lr())


@pytest.mark.parametrize("make", [RoFSL, Krum, FoolsGold], ids=lambda cls: cls.__name__)
def test_guarded_with_batch_norm(make: Make) -> None:
    """The guard leaves buffers to a strategy of ours, and its state can be saved through it."""
    data = {"model": with_batch_norm(), "server_data": server_digits()}
    whole = Guarded(make(**data))
    result = whole.start(
        MemoryGrid(make_app(with_batch_norm), NODES), initial(with_batch_norm), num_rounds=6, train_config=lr()
    )
    assert accuracy(result.arrays, with_batch_norm) > 0.7
    plain_one = make(**data)
    alone = plain_one.start(
        MemoryGrid(make_app(with_batch_norm), NODES), initial(with_batch_norm), num_rounds=6, train_config=lr()
    )
    assert sha256(to_state(result.arrays)) == sha256(to_state(alone.arrays)), "honest replies pass as they are"
    assert whole.state_dict().keys() == plain_one.state_dict().keys() != set()
