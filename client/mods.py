"""Mods that make any Flower ClientApp malicious, and a function that poisons any training loop's batches.

    app = ClientApp(mods=[poison("sign-flip", strength=5.0, partitions=[0])])
    x, y = poison_batches("label-flip", classes=10)(x, y)

The attacks are those of `thistle list attacks`, computed by the same functions (thistle.attacks.poisoning).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from pydantic import ValidationError

from thistle.attacks.poisoning.parts import DataAttack, Facts, Poison, UpdateAttack
from thistle.attacks.registry import PoisoningAttack, chosen, find
from thistle.attacks.roles import active, attackers
from thistle.experiments.errors import UserError
from thistle.experiments.randomness import seed_for, torch_rng
from thistle.experiments.settings import Attack, Value
from thistle.protocol.layout import Layout, State, to_record
from thistle.protocol.training import ROUND

__all__ = ["poison", "poison_batches"]

TRAIN = "train"


def poison(
    name: str,
    *,
    strength: float | None = None,
    partitions: Collection[int] | None = None,
    nodes: Collection[int] | None = None,
    fraction: float | None = None,
    start: int = 1,
    stop: int = 0,
    seed: int = 0,
    **settings: Value,
) -> PoisonMod:
    """A mod that makes a ClientApp send a changed update u, such as sign-flip, scale, gaussian or zero.

    It changes the trained floating-point arrays of training replies; buffers, metrics and evaluation stay. `strength`:
    as in `thistle list attacks`; `settings`: the attack's others. Which nodes attack: those of these partitions (the
    node config's `partition-id`), of these node ids, or a fraction drawn by `seed`; all if nothing is given. When:
    from round `start` to round `stop` (0: to the end), by the request's `server-round`.
    """
    given = {"start": start, "stop": stop, **({} if fraction is None else {"fraction": fraction})}
    attack, made = _chosen("poison", name, strength, settings, given)
    if stop and stop < start:
        raise UserError(f"poison({name!r}): stop = {stop} is before start = {start}; use 0 to attack to the end")
    chosen = [f"{key}=" for key, value in _who(partitions, nodes, fraction).items() if value is not None]
    if len(chosen) > 1:
        raise UserError(f"poison({name!r}): give only one of {' and '.join(chosen)}")
    parts = made.poison(_facts(classes=0))
    _refuse_more("poison", name, parts)
    if parts.data is not None or parts.update is None:
        raise UserError(
            f"poison({name!r}): poisons data, not updates: use poison_batches({name!r}) in the training loop"
        )
    return PoisonMod(attack, parts.update, _frozen(partitions), _frozen(nodes), fraction, seed)


def poison_batches(
    name: str, *, classes: int | None = None, strength: float | None = None, seed: int = 0, **settings: Value
) -> DataAttack:
    """A function from a batch (x, y) of tensors to the one that a malicious client trains on.

    `label-flip`: class c becomes c + 1 mod `classes`. `backdoor`: the first images of a batch (n×c×h×w in [0, 1]),
    `strength` of it, get a trigger and the label `target`; `seed`: what the trigger `blend` is drawn from.
    """
    _, made = _chosen("poison_batches", name, strength, settings, {}, classes)
    if made.needs_classes and (classes is None or classes < 2):
        raise UserError(f"poison_batches({name!r}): classes = {classes}: say how many there are, at least 2")
    parts = made.poison(_facts(classes or 0, seed))
    _refuse_more("poison_batches", name, parts)
    if parts.data is None:
        raise UserError(f"poison_batches({name!r}): poisons updates, not data: use ClientApp(mods=[poison({name!r})])")
    if parts.rate != 1:
        raise UserError(f"poison_batches({name!r}): strength multiplies the learning rate: set it in the training loop")
    return parts.data


@dataclass(frozen=True)
class PoisonMod:
    """What `poison` makes: a Flower mod."""

    attack: Attack
    update: UpdateAttack
    partitions: frozenset[int] | None
    nodes: frozenset[int] | None
    fraction: float | None
    seed: int

    def __call__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """Let the app work, then change what it sends."""
        asked_to_train = message.metadata.message_type.split(".")[0] == TRAIN
        if not asked_to_train or not self.attacks(context) or not active(self.attack, _round(message)):
            return call_next(message, context)
        sent = [dict(record) for record in _arrays(message).values()]
        noise = torch_rng(self.seed, "attack", _round(message), context.node_id)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        changed = 0
        for name, record in _arrays(reply).items():
            model = next((model for model in sent if model.keys() == record.keys()), None)
            if model is not None:
                reply.content[name] = self._poisoned(ArrayRecord(model), record, noise)
                changed += 1
        if not changed:
            raise ValueError(
                "poison: the reply has no arrays of the names that were sent: there is no update to change"
            )
        return reply

    def attacks(self, context: Context) -> bool:
        """Whether this node does, in any round."""
        config = context.node_config
        if self.partitions is not None:
            if "partition-id" not in config:
                raise ValueError(
                    "poison(partitions=…): this node's config has no partition-id: use nodes= or fraction="
                )
            return config["partition-id"] in self.partitions
        if self.nodes is not None:
            return context.node_id in self.nodes
        if self.fraction is None:
            return True
        if "partition-id" in config and "num-partitions" in config:
            return config["partition-id"] in attackers(self.attack, int(config["num-partitions"]), self.seed)
        who = config.get("partition-id", context.node_id)
        return seed_for(self.seed, "attackers", str(who)) < self.fraction * 2**63

    def _poisoned(self, sent: ArrayRecord, trained: ArrayRecord, noise: torch.Generator) -> ArrayRecord:
        layout, before, after = Layout.of_record(sent), _state(sent), _state(trained)
        start = _vector(layout, before)
        vector = start + self.update(_vector(layout, after) - start, noise)
        return to_record(layout.state(vector, after))


def _vector(layout: Layout, state: State) -> torch.Tensor:
    """What is trained, in the finest type that it has: float32 but for float64 models."""
    parts = [state[entry.name].reshape(-1) for entry in layout.trained]
    finest = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    return torch.cat([torch.empty(0, dtype=finest), *(part.to(finest) for part in parts)])


def _state(record: ArrayRecord) -> State:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def _arrays(message: Message) -> dict[str, ArrayRecord]:
    return {name: record for name, record in message.content.items() if isinstance(record, ArrayRecord)}


def _round(message: Message) -> int:
    """The round that the request's config names; 1 where it names none."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord) and type(number := record.get(ROUND)) is int:
            return number
    return 1


def _who(
    partitions: Collection[int] | None, nodes: Collection[int] | None, fraction: float | None
) -> dict[str, object]:
    return {"partitions": partitions, "nodes": nodes, "fraction": fraction}


def _frozen(ids: Collection[int] | None) -> frozenset[int] | None:
    return None if ids is None else frozenset(ids)


def _chosen(
    caller: str,
    name: str,
    strength: float | None,
    settings: Mapping[str, Value],
    given: Mapping[str, Any],
    classes: int | None = None,
) -> tuple[Attack, PoisoningAttack]:
    """The attack of that name, checked; what needs a panel of colluders is refused."""
    cls = find(name, caller)
    if name == "none":
        raise UserError(f"{caller}({name!r}): leave it out instead")
    if cls.knows not in ("nothing", "own data") or cls.has_parts:
        raise UserError(f"{caller}({name!r}): needs to know other clients, which one app does not: use `thistle run`")
    for key in settings:
        if key in Attack.model_fields:
            raise TypeError(f"{caller}() got an unexpected keyword argument {key!r}")
    main = {} if strength is None else {"strength": strength}
    try:
        attack = Attack.model_validate({"kind": name, **settings, **given, **main})
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{caller}({name!r}): {first['loc'][0]} = {first['input']!r}: {first['msg']}") from None
    try:
        made = chosen(attack)
        made.check(classes)
    except UserError as error:
        raise UserError(f"{caller}({name!r}): {str(error).removeprefix('attack.')}") from None
    return attack, made


def _refuse_more(caller: str, name: str, parts: Poison) -> None:
    """An attack that is more than other batches, or another update, needs our client."""
    if parts.aim or parts.constraint or parts.spared or parts.recollection:
        raise UserError(f"{caller}({name!r}): needs to see the model that came, or its training: use `thistle run`")


def _facts(classes: int, seed: int = 0) -> Facts:
    return Facts(classes, n=1, f=1, seed=seed)
