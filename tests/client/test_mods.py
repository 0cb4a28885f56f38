"""`poison` around a ClientApp that knows nothing of Thistle, in Flower's own `start()`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.flower_app import accuracy, initial, make_app, with_batch_norm
from tests.flower_grid import MemoryGrid
from thistle.client.mods import poison, poison_batches
from thistle.experiments.errors import UserError
from thistle.server import Guarded

NODES = 5
BUFFERS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def replies(number: int = 1, kind: str = "train", sent: ArrayRecord | None = None, **app: Any) -> list[Message]:
    """Each node's reply to round `number`, in the order of partitions."""
    grid = MemoryGrid(make_app(with_batch_norm, **app), NODES)
    content = RecordDict({"arrays": sent or initial(with_batch_norm), "config": ConfigRecord({"server-round": number})})
    return list(grid.send_and_receive([Message(content, node, kind) for node in grid.ids]))


def arrays(message: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def update(message: Message) -> dict[str, np.ndarray]:
    sent = initial(with_batch_norm)
    return {name: values - sent[name].numpy() for name, values in arrays(message).items() if name not in BUFFERS}


def length(one: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum((values.astype(np.float64) ** 2).sum() for values in one.values())))


def malicious(name: str, number: int = 1, **more: Any) -> list[Message]:
    return replies(number, mods=[poison(name, **more)])


def attackers(**more: Any) -> list[int]:
    """The partitions whose reply the mod changed."""
    number = more.pop("number", 1)
    pairs = zip(replies(number), malicious("zero", number, **more), strict=True)
    return [index for index, (good, bad) in enumerate(pairs) if length(update(bad)) < 1e-6 < length(update(good))]


@pytest.mark.parametrize(
    ("name", "strength", "factor"), [("sign-flip", 5.0, -5.0), ("scale", 3.0, 3.0), ("zero", None, 0.0)]
)
def test_the_update_is_changed_and_nothing_else(name: str, strength: float | None, factor: float) -> None:
    for good, bad in zip(replies(), malicious(name, strength=strength), strict=True):
        honest, sent = update(good), update(bad)
        for key in honest:
            np.testing.assert_allclose(sent[key], factor * honest[key], rtol=1e-4, atol=1e-6)
        assert all((arrays(good)[key] == arrays(bad)[key]).all() for key in BUFFERS)
        assert [(k, v.dtype) for k, v in arrays(bad).items()] == [(k, v.dtype) for k, v in arrays(good).items()]
        assert bad.content["metrics"] == good.content["metrics"]


def test_gaussian_noise_has_the_updates_length_times_strength() -> None:
    good, bad, again = replies(), malicious("gaussian", strength=4.0), malicious("gaussian", strength=4.0)
    for one, other, same in zip(good, bad, again, strict=True):
        assert length(update(other)) == pytest.approx(4 * length(update(one)), rel=1e-4)
        assert all((arrays(other)[name] == arrays(same)[name]).all() for name in arrays(other))
    assert not np.allclose(update(bad[0])["0.weight"], update(bad[1])["0.weight"])


def test_evaluation_is_left_alone() -> None:
    honest = replies(kind="evaluate")
    assert [reply.content for reply in replies(kind="evaluate", mods=[poison("scale", strength=9.0)])] == [
        reply.content for reply in honest
    ]


def test_who_attacks() -> None:
    ids = MemoryGrid(make_app(), NODES).ids
    assert attackers() == list(range(NODES))
    assert attackers(partitions=[0, 3]) == [0, 3]
    assert attackers(nodes=[ids[2]]) == [2]
    some = attackers(fraction=0.4)
    assert len(some) == 2 and attackers(fraction=0.4) == some
    assert {tuple(attackers(fraction=0.4, seed=seed)) for seed in range(5)} != {tuple(some)}


def test_a_fraction_without_partitions_goes_by_the_nodes_id() -> None:
    mod = poison("zero", fraction=0.3)
    chosen = [mod.attacks(Context(1, node, {}, RecordDict(), {})) for node in range(2**63, 2**63 + 1000)]
    assert 250 < sum(chosen) < 350


def test_when_they_attack() -> None:
    assert [bool(attackers(number=number, start=2, stop=3)) for number in (1, 2, 3, 4)] == [False, True, True, False]
    assert bool(attackers(number=40, start=2))


def test_a_reply_with_other_arrays_is_an_error_and_no_silent_honesty() -> None:
    def renamed(content: RecordDict) -> RecordDict:
        return RecordDict({**content, "arrays": ArrayRecord([np.zeros(2)])})

    reply = replies(mods=[poison("zero")], train_reply=renamed)[0]
    assert reply.has_error() and "no arrays of the names" in reply.error.reason


def test_partitions_need_a_partition_id() -> None:
    with pytest.raises(ValueError, match="no partition-id"):
        poison("zero", partitions=[0]).attacks(Context(1, 7, {}, RecordDict(), {}))


def test_an_absurd_node_ruins_fedavg_and_not_the_guarded_one() -> None:
    def app(index: int) -> Any:
        return make_app(with_batch_norm, mods=[poison("scale", strength=1e6, partitions=[0])])

    def run(strategy: Any) -> ArrayRecord:
        return strategy.start(MemoryGrid(app, 10), initial(with_batch_norm), num_rounds=4).arrays  # type: ignore[no-any-return]

    guarded = Guarded(FedAvg())
    assert accuracy(run(FedAvg()), with_batch_norm) < 0.4
    assert accuracy(run(guarded), with_batch_norm) > 0.7
    assert {v.reason.partition(":")[0] for v in guarded.verdicts if v.reason} == {"magnitude"}


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("sgn-flip", {}, "did you mean sign-flip"),
        ("sign-flip", {"strength": -1.0}, "strength = -1.0: .* greater than or equal to 0"),
        ("sign-flip", {"strength": float("nan")}, "finite"),
        ("sign-flip", {"strength": "much"}, "strength = 'much'"),
        ("zero", {"strength": 2.0}, "poison..zero..: strength = 2: zero has none"),
        ("alie", {}, "thistle run"),
        ("mix", {}, "thistle run"),
        ("none", {}, "leave it out"),
        ("label-flip", {}, "poison_batches"),
        ("backdoor", {}, "poison_batches"),
        ("neurotoxin", {}, "thistle run"),
        ("label-flip-dynamic", {}, "thistle run"),
        ("scale", {"fraction": 2.0}, "fraction = 2.0"),
        ("scale", {"fraction": 0.1, "nodes": [1]}, "only one of nodes= and fraction="),
        ("scale", {"start": 5, "stop": 2}, "stop = 2"),
    ],
)
def test_bad_arguments_are_named(name: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        poison(name, **more)
    assert "\n" not in str(caught.value)


def test_batches() -> None:
    x, y = torch.zeros(4, 1, 5, 5), torch.tensor([0, 1, 8, 9])
    same, flipped = poison_batches("label-flip", classes=10)(x, y)
    assert same is x and flipped.tolist() == [1, 2, 9, 0]
    stamped, labels = poison_batches("backdoor", target=7, strength=0.5)(x, y)
    assert labels.tolist() == [7, 7, 8, 9] and stamped.sum((1, 2, 3)).tolist() == [9, 9, 0, 0]
    one, same, other = (poison_batches("backdoor", trigger="blend", seed=seed)(x, y)[0] for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    for name, more, says in (
        ("label-flip", {}, "classes = None"),
        ("label-flip", {"classes": 10, "strength": 2.0}, "learning rate"),
        ("backdoor", {"classes": 10, "target": 10}, "target = 10"),
        ("backdoor", {"strength": 2.0}, "at most 1"),
        ("backdoor", {"trigger": "dots"}, "trigger = 'dots': should be 'patch'"),
        ("sign-flip", {}, "mods="),
        ("ipm", {}, "thistle run"),
        ("dba", {}, "needs to know other clients"),
        ("neurotoxin", {}, "needs to see the model that came"),
        ("a3fl", {}, "needs to see the model that came"),
        ("constrain-and-scale", {}, "needs to see the model that came"),
        ("label-flip-dynamic", {}, "needs to see the model that came"),
        ("edge-case", {}, "images: not set"),
    ):
        with pytest.raises(UserError, match=says):
            poison_batches(name, **more)  # type: ignore[arg-type]
