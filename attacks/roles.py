"""Who attacks, when, and whom they know: functions of (settings, seed), or of a real node's own config.

A simulated client's orders come from the experiment. A node of a deployed federation has a `role` in its node
config, and then nothing in a submitted experiment is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from pydantic import ValidationError

from thistle.attacks.registry import ALONE, Attacker, attacks, chosen, find, settings_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Attack, Value, dashed, parse_ids

PANEL = 5
"""How many trainings show colluders what honest updates look like."""

SIMULATED = "simulated"
"""In a host's node config: this is no real node."""
ROLES = ("honest", "calibrated", "malicious")
Training = tuple[int, int]
"""One training of a panel: whose data, and for the how many'th time (0: the client's own training)."""


@lru_cache(maxsize=8)
def _drawn(fraction: float, chosen: str, clients: int, seed: int) -> tuple[np.ndarray, int]:
    """All clients in the seed's order, attackers first; and how many these are. More attackers include the fewer."""
    order = numpy_rng(seed, "attackers").permutation(clients)
    if not chosen:
        return order, round(fraction * clients)
    attacks = np.isin(order, parse_ids("attack.clients", chosen, clients))
    return np.concatenate([order[attacks], order[~attacks]]), int(attacks.sum())


@lru_cache(maxsize=8)
def attackers(attack: Attack, clients: int, seed: int) -> frozenset[int]:
    """The malicious ones among clients 0 … clients−1."""
    if attack.kind == "none":
        return frozenset()
    order, count = _drawn(attack.fraction, attack.clients, clients, seed)
    return frozenset(order[:count].tolist())


@lru_cache(maxsize=8)
def numbers(attack: Attack, clients: int, seed: int) -> dict[int, int]:
    """The malicious ones, numbered in the seed's order."""
    if attack.kind == "none":
        return {}
    order, count = _drawn(attack.fraction, attack.clients, clients, seed)
    return {client: number for number, client in enumerate(order[:count].tolist())}


def active(attack: Attack, number: int) -> bool:
    """Whether attackers attack in round `number`."""
    within = attack.start <= number and (attack.stop == 0 or number <= attack.stop)
    return within and (attack.period == 0 or (number - attack.start) // attack.period % 2 == 0)


def orders(
    client: int, number: int, experiment: Experiment, node_config: Mapping[str, Value], times: int = 0
) -> Attack | None:
    """What this client does in round `number` instead of its honest work; None: nothing.

    `times`: how often it has been asked before. A node's own config comes first. The experiment decides in a
    simulation only, and that a host is simulated is for the host to know (`simulated`), not for the experiment to say:
    no real node can be turned by one.
    """
    attack = standing_orders(client, experiment, node_config)
    if attack is None or not active(attack, number) or times < attack.honest_first:
        return None
    return part_of(attack, client, experiment.task.clients, experiment.seed)


def standing_orders(client: int, experiment: Experiment, node_config: Mapping[str, Value]) -> Attack | None:
    """What this client does in the rounds in which it attacks; None: it never does."""
    if "role" in node_config:
        return node_orders(node_config)
    malicious = attackers(experiment.attack, experiment.task.clients, experiment.seed)
    return experiment.attack if node_config.get(SIMULATED) is True and client in malicious else None


def remembers(attack: Attack) -> bool:
    """Whether attackers need to know what they saw and sent before."""
    return bool(attack.honest_first) or find(attack.kind).remembers


def part_of(attack: Attack, client: int, clients: int, seed: int) -> Attack:
    """This attacker's part of the attack, if each has its own part."""
    if not find(attack.kind).has_parts:
        return attack
    known = numbers(attack, clients, seed)
    return chosen(attack).part(attack, Attacker(client, seed, known.get(client), len(known)))


def node_keys() -> dict[str, str]:
    """What a malicious node's config may say, and the setting of the attack that it stands for."""
    names = dict.fromkeys(name for cls in attacks().values() for name in ("strength", *settings_of(cls).model_fields))
    return {"attack": "kind", **{f"attack-{dashed(name)}": name for name in names}}


def node_orders(node_config: Mapping[str, Value]) -> Attack | None:
    """What a deployed node's own config tells it to do; None: honest work."""
    role = node_config["role"]
    if role not in ROLES:
        raise UserError(f"node config: role = {role!r}: should be {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    if role != "malicious":
        return None
    kind = str(node_config.get("attack", ""))
    if kind == "none" or find(kind, "node config: attack").knows not in ALONE:
        raise UserError(f"node config: attack = {kind}: not possible on a real node")
    keys = node_keys()
    given = {setting: node_config[key] for key, setting in keys.items() if key in node_config}
    try:
        attack = Attack.model_validate(given)
    except ValidationError as error:
        key = {setting: key for key, setting in keys.items()}[str(error.errors()[0]["loc"][0])]
        raise UserError(f"node config: {key} = {node_config[key]!r}: {error.errors()[0]['msg']}") from None
    try:
        chosen(attack).check(classes=None)
    except UserError as error:
        raise UserError(f"node config: {str(error).replace('attack.', 'attack-', 1)}") from None
    return attack


def panel(attack: Attack, client: int, clients: int, seed: int, size: int | None = None) -> list[Training]:
    """The trainings that colluders take their μ and σ from: the same for any sample and on any host.

    The first attackers in the seed's order, or honest clients for the omniscient. If it knows only one client
    (on a real node: itself), an attacker trains on that client's data repeatedly. So do
    several, if they are fewer than the `size` that the attack asks for.
    """
    order, count = _drawn(attack.fraction, attack.clients, clients, seed)
    most = PANEL if size is None else size
    known = (order[count:] if attack.omniscient else order[:count])[:most].tolist() or [client]
    wanted = len(known) if size is None and len(known) > 1 else most
    return [(known[place % len(known)], place // len(known)) for place in range(wanted)]


def expected_attackers(attack: Attack, clients: int, per_round: int, seed: int) -> int:
    """f: how many of a round's clients attack, on average and rounded; at least the one who asks."""
    return max(1, round(len(attackers(attack, clients, seed)) / clients * per_round))
