"""Who attacks, when, and whom they know: functions of (settings, seed), or of a real node's own config.

A simulated client's orders come from the experiment. A node of a deployed federation has a `role` in its node
config, and then nothing in a submitted experiment is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from pydantic import ValidationError

from thistle.attacks.table import check_kind, find, strength_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Attack, Value, parse_ids

PANEL = 5
"""So many trainings tell colluders what honest updates look like."""

SIMULATED = "simulated"
"""In a host's node config: this is no real node."""
ROLES = ("honest", "calibrated", "malicious")
NODE_KEYS = {"attack": "kind", "attack-strength": "strength", "attack-boost": "boost", "attack-target": "target"}
"""What a malicious node's config may say, and the setting that it stands for."""

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


def nobody_attacks(experiment: Experiment) -> bool:
    """Whether an attack is named that no client carries out."""
    attack = experiment.attack
    return attack.kind != "none" and not attackers(attack, experiment.task.clients, experiment.seed)


@lru_cache(maxsize=8)
def sign_flippers(attack: Attack, clients: int, seed: int) -> frozenset[int]:
    """`mix`: the half of the attackers that flips signs (the larger one, if they are odd)."""
    order, count = _drawn(attack.fraction, attack.clients, clients, seed)
    return frozenset(order[: (count + 1) // 2].tolist())


def active(attack: Attack, number: int) -> bool:
    """Whether attackers attack in round `number`."""
    return attack.start <= number and (attack.stop == 0 or number <= attack.stop)


def orders(client: int, number: int, experiment: Experiment, node_config: Mapping[str, Value]) -> Attack | None:
    """What this client does in round `number` instead of its honest work; None: nothing.

    A node's own config comes first. The experiment decides in a simulation only, and that a host is simulated
    is for the host to know (`simulated`), not for the experiment to say: no real node can be turned by one.
    """
    clients, seed = experiment.task.clients, experiment.seed
    attack = None
    if "role" in node_config:
        attack = node_orders(node_config)
    elif node_config.get(SIMULATED) is True and client in attackers(experiment.attack, clients, seed):
        attack = experiment.attack
    if attack is None or not active(attack, number):
        return None
    return mix_orders(attack, client, clients, seed) if attack.kind == "mix" else attack


def node_orders(node_config: Mapping[str, Value]) -> Attack | None:
    """What a deployed node's own config tells it to do; None: honest work."""
    role = node_config["role"]
    if role not in ROLES:
        raise UserError(f"node config: role = {role!r}: should be {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    if role != "malicious":
        return None
    find(str(node_config.get("attack", "")), "node config: attack")
    given = {setting: node_config[key] for key, setting in NODE_KEYS.items() if key in node_config}
    try:
        attack = Attack.model_validate(given)
    except ValidationError as error:
        key = {setting: key for key, setting in NODE_KEYS.items()}[str(error.errors()[0]["loc"][0])]
        raise UserError(f"node config: {key} = {node_config[key]!r}: {error.errors()[0]['msg']}") from None
    if attack.kind in ("none", "mimic"):
        raise UserError(f"node config: attack = {attack.kind}: not possible on a real node")
    check_kind(attack)
    return attack


def mix_orders(attack: Attack, client: int, clients: int, seed: int) -> Attack:
    """This client's part in `mix`: signs with ν ~ U[0.1, 10.1], or labels with a rate times ν ~ U[0.1, 2.1]."""
    rng = numpy_rng(seed, "mix", client)
    if client in attackers(attack, clients, seed):
        signs = client in sign_flippers(attack, clients, seed)
    else:  # a real node does not know of others
        signs = bool(rng.integers(2))
    nu = rng.uniform(0.1, 10.1 if signs else 2.1) * (strength_of(attack) or 0.0)
    return attack.model_copy(update={"kind": "sign-flip" if signs else "label-flip", "strength": nu})


def panel(attack: Attack, client: int, clients: int, seed: int) -> list[Training]:
    """The trainings that colluders take their μ and σ from: the same whoever is sampled and wherever it runs.

    The first attackers in the seed's order, or honest clients for the omniscient; whoever knows only one client
    (on a real node: itself) trains on that one's data again and again.
    """
    order, count = _drawn(attack.fraction, attack.clients, clients, seed)
    known = (order[count:] if attack.omniscient else order[:count])[:PANEL].tolist() or [client]
    return [(one, 0) for one in known] if len(known) > 1 else [(known[0], again) for again in range(PANEL)]


def expected_attackers(attack: Attack, clients: int, per_round: int, seed: int) -> int:
    """f: how many of a round's clients attack, on average and rounded; at least the one who asks."""
    return max(1, round(len(attackers(attack, clients, seed)) / clients * per_round))
