"""An experiment: flat dotted keys outside, frozen sections inside; files and overrides become one.

The outside form is what Flower's run config allows: bool, int, float and string values,
`client.batch-size = 10`. Everything is checked here, once, before anything starts.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.settings import Section, Value, dashed, learning_rate, parse_ids


class Experiment(Section):
    """Everything that decides a run's result, and where it is kept."""

    seed: settings.Natural = 0
    """Everything random follows from it: partition, attackers, initial weights, sampling, batches, dropout."""
    rounds: settings.Positive = 60
    """How many rounds."""
    run: settings.Run = settings.Run()
    task: settings.Task = settings.Task()
    model: settings.Model = settings.Model()
    client: settings.Client = settings.Client()
    strategy: settings.Strategy = settings.Strategy()
    attack: settings.Attack = settings.Attack()
    evaluate: settings.Evaluate = settings.Evaluate()
    stop: settings.Stop = settings.Stop()
    runtime: settings.Runtime = settings.Runtime()

    @classmethod
    def of(cls, flat: Mapping[str, Any]) -> Experiment:
        """From dotted keys; absent ones keep their defaults. Raises UserError naming the first bad key."""
        tree: dict[str, Any] = {}
        for key, value in flat.items():
            if not is_key(key):
                raise UserError(unknown_key(key))
            section, _, name = key.rpartition(".")
            if key.startswith(OPEN) and key not in KEYS:
                if value == "default":
                    continue
                name = name.replace("-", "_")
            (tree.setdefault(section, {}) if section else tree)[name] = value
        try:
            experiment = cls.model_validate(tree)
        except ValidationError as error:
            raise UserError(explain(error, KEYS)) from None
        _check_together(experiment)
        return experiment

    @property
    def network(self) -> settings.Network:
        """The model as this experiment's clients train it: RoBal classifies by cosines, FedRBN keeps two statistics."""
        return settings.Network(
            name=self.model.name,
            dropout=self.model.dropout,
            head="cosine" if self.client.calibration == "robal" else "linear",
            norm="dual" if self.client.objective == "fedrbn" else "single",
        )

    def flat(self) -> dict[str, Value]:
        """Every key with its value, in the order of the classes above."""
        return _flatten(self)


def _flatten(section: Section, prefix: str = "") -> dict[str, Value]:
    keys: dict[str, Value] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            keys |= _flatten(value, f"{prefix}{dashed(name)}.")
        else:
            keys[prefix + dashed(name)] = value
    return keys | {prefix + dashed(name): value for name, value in (section.model_extra or {}).items()}


KEYS: dict[str, Value] = _flatten(Experiment())
"""Every key an experiment may have, with its default."""
OPEN = tuple(f"{name}." for name, value in Experiment() if isinstance(value, settings.Open))
"""What the keys begin with that only the strategy or the attack itself knows."""
NUMBERS_TOO = ("client.clip",)
"""Keys that are a word or a number, beside those whose default is "default"."""


def unknown_key(key: str) -> str:
    near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
    return f"{key}: no such key" + (f"; did you mean {near[0]}?" if near else "")


def is_key(key: str) -> bool:
    """Whether an experiment may have this key; of a strategy's or an attack's settings only that one itself knows."""
    return key in KEYS or (key.startswith(OPEN) and not key.endswith("."))


def explain(error: ValidationError, keys: Collection[str], prefix: str = "", dash: bool = True) -> str:
    """One line for the first thing wrong: the key, the value, what would be right."""
    known = {dashed(key) for key in keys}
    first, path = error.errors()[0], []
    for part in first["loc"]:
        path.append(dashed(str(part)))
        if ".".join(path) in known:
            break
    key = ".".join(path)
    wanted = "; or ".join(
        dict.fromkeys(
            _wanted(problem) for problem in error.errors() if dashed(".".join(map(str, problem["loc"]))).startswith(key)
        )
    )
    return f"{prefix}{key if dash else key.replace('-', '_')} = {first['input']!r}: {wanted}"


def _wanted(problem: Any) -> str:
    text: str = problem["msg"]
    return text.removeprefix("Input ").replace("valid number", "number").replace("valid integer", "whole number")


def _check_together(experiment: Experiment) -> None:
    """What no single key can know."""
    client, task = experiment.client, experiment.task
    if client.per_round > task.clients:
        raise UserError(f"client.per-round = {client.per_round}: there are only task.clients = {task.clients}")
    if client.min_replies > client.per_round:
        raise UserError(
            f"client.min-replies = {client.min_replies}: at most client.per-round = {client.per_round} can reply"
        )
    if experiment.run.keep_replies and experiment.run.audit == "off":
        raise UserError('run.keep-replies = true: replies are kept for the audit log; leave out run.audit = "off"')
    for number in (1, experiment.rounds):
        learning_rate(client, number, experiment.rounds)
    attack = experiment.attack
    if attack.clients:
        parse_ids("attack.clients", attack.clients, task.clients)
    if client.adversarial_clients:
        parse_ids("client.adversarial-clients", client.adversarial_clients, task.clients)


def flatten_tables(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested TOML tables as dotted keys."""
    keys: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            keys |= flatten_tables(value, f"{prefix}{name}.")
        else:
            keys[prefix + name] = value
    return keys


def read_file(path: Path) -> dict[str, Any]:
    """The dotted keys of an experiment file."""
    try:
        return flatten_tables(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs; a value that is not TOML is taken as text (so quotes are optional)."""
    keys: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"--set {pair}: write key=value")
        if not is_key(key):
            raise UserError(unknown_key(key))
        keys[key] = _parse_value(text.strip(), key)
    return keys


def _parse_value(text: str, key: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    default = KEYS.get(key, "default")
    takes_text_only = isinstance(default, str) and default != "default" and key not in NUMBERS_TOO
    return text if takes_text_only and not isinstance(value, str) else value
