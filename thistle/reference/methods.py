"""One page per strategy and per attack: what it does, its formula and steps, its paper, its settings, an example."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

from thistle.attacks.registry import ALONE, PoisoningAttack, attacks, settings_of
from thistle.reference.parts import ours, settings_table
from thistle.reference.rows import lacking, own_rows, rows
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import Named, about
from thistle.strategies.steps.aggregation import Aggregation

KERNELS = "thistle.strategies.aggregators."
TOOLS = {"gram", "mean", "combine", "norms", "inner_products", "clip"}
"""Kernels that many rules use and that say little of any of them."""
LINKS = re.compile(r"\]\((?!http|\.\./)([\w-]+\.md)?(#[\w-]+)?\)")


def strategy_pages() -> dict[str, str]:
    """By name; Flower's own strategies have their pages with Flower."""
    return {name: _strategy(name, cls) for name, cls in ours().items() if not name.startswith("flwr-")}


def _strategy(name: str, cls: type[Named]) -> str:
    made = cls()
    needs = made.server_data_for()
    facts = [f"Paper: {cls.paper}", f"File: `{_file(cls)}`"]
    facts += ["Needs data at the server"] if needs else []
    missing = [f"`{key}`" for key in lacking(cls)] if issubclass(cls, Pipeline) else []
    facts += [f"Has no {', '.join(missing)}"] if missing else []
    parts = [f"# {name}", f"{about(cls)}.", "\n".join(f"- {fact}" for fact in facts), *_words(cls)]
    if issubclass(cls, Pipeline):
        parts += _steps(made)
    own = own_rows(cls)
    common = "The [settings of every strategy](../../strategies.md#common-settings) are not repeated here."
    parts += ["## Settings", _near(settings_table(own)) if own else "No additional settings.", common]
    arguments = "model=net, server_data=(x, y)" if needs else ""
    parts += [
        "## Use it",
        f"In an experiment:\n\n    thistle run digits-mix --set strategy.name={name}",
        f"In [a Flower app](../../flower.md):\n\n```python\nfrom thistle.strategies import {cls.__qualname__}\n\n"
        f"strategy = {cls.__qualname__}({arguments})\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _file(cls: type) -> str:
    return cls.__module__.removeprefix("thistle.").replace(".", "/") + ".py"


def _words(cls: type) -> Iterator[str]:
    """What the code says of it: the rest of the class's docstring, the module's if it explains, the kernels'."""
    _, _, rest = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    if rest.strip():
        yield rest.strip()
    module = sys.modules[cls.__module__]
    _, _, text = inspect.cleandoc(module.__doc__ or "").partition("\n")
    if text.strip():
        yield text.strip()
    for name, kernel in vars(module).items():
        if inspect.isfunction(kernel) and kernel.__module__.startswith(KERNELS) and name not in TOOLS:
            yield f"## The function `{name}`\n\n{inspect.cleandoc(kernel.__doc__ or '')}"


def _steps(made: Named) -> Iterator[str]:
    """The steps of the rule, in the order of its paper."""
    assert isinstance(made, Pipeline)
    found = [step for step in made.steps() if step is not None and not getattr(step, "off", False)]
    lines = [f"1. {_first_line(step)}" for step in found]
    if len(lines) > 1:
        yield "## Steps\n\n" + "\n".join(lines)


def _first_line(step: object) -> str:
    told = step.rule if isinstance(step, Aggregation) else type(step)
    return inspect.cleandoc(told.__doc__ or step.__class__.__name__).partition("\n")[0]


def attack_pages() -> dict[str, str]:
    """By name, without `none`."""
    found = {name: cls for name, cls in attacks().items() if cls.__module__.startswith("thistle.")}
    return {name: _attack(name, cls) for name, cls in found.items() if name != "none"}


def _attack(name: str, cls: type[PoisoningAttack]) -> str:
    summary, _, formula = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    facts = [f"Paper: {cls.paper}"] if cls.paper else []
    facts += [f"File: `{_file(cls)}`", f"Attackers know: {cls.knows}"]
    facts += [] if cls.knows in ALONE else ["In simulations only"]
    own = rows(settings_of(cls), "attack.")
    needed = "".join(f" --set attack.{key}=…" for key in cls.needs)
    knows_all = " --set attack.omniscient=true" if cls.knows in ("honest clients", "defence") else ""
    return (
        "\n\n".join(
            filter(
                None,
                [
                    f"# {name}",
                    summary,
                    formula.strip(),
                    "\n".join(f"- {fact}" for fact in facts),
                    "## Settings",
                    _near(settings_table(own)) if own else "No additional settings.",
                    f"[Who attacks, and when](../../guide.md#attacks), is the same for all attacks; those of its family"
                    f" are [compared on one page](../../attacks/{cls.family}.md).",
                    f"## Use it\n\n    thistle run digits-mix --set attack.kind={name}{needed}{knows_all}",
                ],
            )
        )
        + "\n"
    )


def _near(table: str) -> str:
    """Links of the tables lead from docs/, two folders up."""
    return LINKS.sub(lambda link: f"](../../{link[1] or 'guide.md'}{link[2] or ''})", table).rstrip()
