"""A node's report about itself, from command-line options to Flower's --node-config; checked before anything starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from thistle.experiments.errors import UserError
from thistle.experiments.plugins import FORMS
from thistle.experiments.settings import Value, parse_ids

MOST = 10**9
"""Client ids below this; the experiment knows how many there really are."""


def node_config(clients: str, data: str, role: str, attack: str, more: list[str], site: str = "") -> dict[str, Value]:
    """The node's config; UserError for what our node would refuse later."""
    from thistle.attacks.roles import ROLES, node_orders
    from thistle.client.data import OWN

    config: dict[str, Value] = {"role": role}
    if role not in ROLES:
        raise UserError(f"--role {role}: should be {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    if clients:
        parse_ids("--clients", clients, MOST, 10**6)
        config["clients"] = clients
    if data:
        config[OWN] = _own(data)
    if attack and role != "malicious":
        raise UserError(f"--attack {attack}: only with --role malicious")
    if attack:
        config["attack"] = attack
    if site:
        config["site"] = site
    config |= _settings(more, role)
    node_orders(config)
    return config


def _own(data: str) -> str:
    kind, _, path = data.partition(":")
    if kind not in FORMS or not path:
        raise UserError(f"--data {data}: should be {', '.join(f'{form}:PATH' for form in FORMS)}")
    found = Path(os.path.abspath(os.path.expanduser(path)))
    if not found.exists():
        raise UserError(f"--data {data}: {found} does not exist")
    return f"{kind}:{found}"


def _settings(more: list[str], role: str) -> dict[str, Value]:
    allowed = _allowed(role) if more else []
    settings = {}
    for item in more:
        key, sign, value = item.partition("=")
        if not sign or key not in allowed:
            known = f"one of {', '.join(allowed)}" if allowed else "nothing: an honest node has no settings"
            raise UserError(f"--set {item}: should be KEY=VALUE with KEY {known}")
        settings[key] = _value(value)
    return settings


def _allowed(role: str) -> list[str]:
    """What may be set for a node of this role."""
    from thistle.attacks.roles import node_keys
    from thistle.client.terms import NODE_KEYS

    if role == "malicious":
        return list(node_keys())
    return list(NODE_KEYS) if role == "calibrated" else []


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def as_text(config: Mapping[str, Value]) -> str:
    """As Flower's --node-config wants it."""
    for key, value in config.items():
        if isinstance(value, str) and re.search(r"[\"'\\\n]", value):
            raise UserError(f"node config: {key} = {value!r}: quotes and backslashes cannot be passed on to Flower")
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
