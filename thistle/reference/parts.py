"""Everything that is generated: the keys of pyproject.toml, and the tables of the documents."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import get_args

from thistle.attacks.registry import Family, PoisoningAttack, attacks, settings_of
from thistle.attacks.stress.suite import candidates
from thistle.commands.listing import TABLES, What
from thistle.experiments.experiment import KEYS, Experiment
from thistle.experiments.settings import Value
from thistle.reference.rows import COLUMNS, Row, attack_rows, common_rows, lacking, own_rows, rows, strategy_rows
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import Named, about, by_class_name, strategies

FAMILIES: tuple[Family, ...] = get_args(Family)
CONFIG = "tool.flwr.app.config"


def ours() -> dict[str, type[Named]]:
    """The strategies that come with Thistle; a user's module may have registered others."""
    return {name: cls for name, cls in strategies().items() if cls.__module__.startswith("thistle.")}


# ---- pyproject.toml -----------------------------------------------------------------------------------------------


def keys() -> str:
    """Every key that an experiment may have, with its default, in tables of TOML."""
    sections: dict[str, dict[str, Value]] = {}
    for key, value in declared().items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    return "\n".join(_toml(f"{CONFIG}.{name}" if name else CONFIG, content) for name, content in sections.items())


def declared() -> dict[str, Value]:
    """Settings that only some strategies or attacks have are "default": what they are is the chosen one's affair."""
    strategies = [*common_rows(), *(row for cls in ours().values() for row in strategy_rows(cls))]
    return {**KEYS, **{row.key: "default" for row in (*strategies, *attack_rows()) if row.key not in KEYS}}


def _toml(name: str, content: Mapping[str, Value]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in content.items())


# ---- strategies/__init__.py ----------------------------------------------------------------------------------------


def exports() -> str:
    """An import of each class, for type checkers and editors."""
    found = sorted((cls.__module__, name) for name, cls in by_class_name().items())
    return "".join(f"    from {module} import {name} as {name}\n" for module, name in found)


# ---- docs/guide.md ------------------------------------------------------------------------------------------------


def settings(*sections: str) -> str:
    """The settings of some sections; "": those of none."""
    return settings_table(row for name in sections for row in _of_section(name))


def attack_settings() -> str:
    """Those that all attacks have, then those of single ones."""
    return settings_table([*_of_section("attack"), *attack_rows()])


def _of_section(name: str) -> list[Row]:
    section = getattr(Experiment(), name) if name else Experiment()
    return rows(type(section), f"{name}." if name else "")


def listed(what: What) -> str:
    """As `thistle list` has it."""
    columns, found = TABLES[what]()
    return table(columns, [[f"`{name}`", *map(_escaped, rest)] for name, *rest in found])


# ---- docs/strategies.md -------------------------------------------------------------------------------------------


def all_strategies() -> str:
    """One row per strategy."""
    columns = ["name", "what", "paper", "class in `thistle.strategies`", "server data"]
    return table(columns, [_strategy(name, cls) for name, cls in ours().items()])


def _strategy(name: str, cls: type[Named]) -> list[str]:
    return [
        f"[`{name}`](#{name})",
        about(cls),
        cls.paper,
        _path(cls),
        "needed" if cls().server_data_for() else "",
    ]


def _path(cls: type[Named]) -> str:
    """Its name in thistle.strategies; Flower's have none there."""
    return "" if cls.name.startswith("flwr-") else f"`{cls.__qualname__}`"


def common() -> str:
    """The settings of every pipeline."""
    return settings_table(common_rows())


def each_strategy() -> str:
    """What each strategy has besides the common settings."""
    return "\n".join(_described(name, cls) for name, cls in ours().items())


def _described(name: str, cls: type[Named]) -> str:
    own = own_rows(cls)
    paragraphs = [f"### {name}", f"{about(cls)}. Paper: {cls.paper}.", *_remarks(cls)]
    nothing = "No additional settings.\n" if issubclass(cls, Pipeline) else "No settings.\n"
    return "\n\n".join([*paragraphs, settings_table(own) if own else nothing])


def _remarks(cls: type[Named]) -> Iterator[str]:
    asking, missing = cls().server_data_for(), [f"`{key}`" for key in lacking(cls)]
    if asking:
        yield "Needs server data." if "name" in asking else f"Needs server data, for `{asking}`."
    if missing and issubclass(cls, Pipeline):
        yield f"Has no {', '.join(missing)}."


# ---- docs/attacks/ -------------------------------------------------------------------------------------------------


def family(name: Family) -> str:
    """The attacks of one family: formula, paper, what attackers know, settings, where `thistle stress` tries it."""
    found = (cls for cls in attacks().values() if cls.family == name and cls.name != "none")
    return "\n".join(_attack(cls) for cls in found if cls.__module__.startswith("thistle."))


def _attack(cls: type[PoisoningAttack]) -> str:
    summary, _, formula = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    known = f"Attackers know: {cls.knows}." + (f" Paper: {cls.paper}." if cls.paper else "")
    own = rows(settings_of(cls), "attack.")
    settings = settings_table(own) if own else "No additional settings.\n"
    return "\n\n".join(filter(None, [f"## {cls.name}", summary, formula.strip(), known, _tried(cls), settings]))


def _tried(cls: type[PoisoningAttack]) -> str:
    tried = [one.words or "its defaults" for one in candidates("all") if one.kind == cls.name]
    return f"`thistle stress` tries it in the suite `{cls.suite}` with: {'; '.join(tried)}." if tried else ""


# ---- tables -------------------------------------------------------------------------------------------------------


def settings_table(found: Iterable[Row]) -> str:
    """Of settings."""
    return table(COLUMNS, [row.cells for row in found])


def table(columns: list[str], cells: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def _escaped(cell: str) -> str:
    return cell.removesuffix(".").replace("|", "\\|").replace("<", "&lt;")


PARTS: dict[str, Callable[[], str]] = {
    "keys": keys,
    "exports": exports,
    "general settings": partial(settings, "", "run"),
    "task settings": partial(settings, "task"),
    "model settings": partial(settings, "model"),
    "client settings": partial(settings, "client"),
    "strategy settings": partial(settings, "strategy"),
    "attack settings": attack_settings,
    "evaluation settings": partial(settings, "evaluate", "stop", "runtime"),
    "tasks": partial(listed, What.TASKS),
    "models": partial(listed, What.MODELS),
    "attacks": partial(listed, What.ATTACKS),
    **{f"attacks on {name}": partial(family, name) for name in FAMILIES},
    "strategies": all_strategies,
    "common settings": common,
    "each strategy": each_strategy,
}
"""By the names that their places in the documents have."""
