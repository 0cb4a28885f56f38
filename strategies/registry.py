"""The strategies by name. Each enters itself where it is written: one file, and nothing to edit elsewhere.

@strategy("trimmed-mean", "Yin et al. 2018")
class TrimmedMean(Pipeline):
    \"\"\"The coordinate mean without the extremes.\"\"\"

    trim: Share = setting("the share that is cut off at each end", default=0.2)

    def rule(self, updates, weights): ...
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from thistle.experiments.choices import Choices, Registered, about, setting, settings_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.settings import Value

__all__ = ["STRATEGIES", "Named", "about", "find", "setting", "settings_of", "strategies", "strategy"]

T = TypeVar("T")
ROOM = "thistle.strategies"
FIRST = ("fedavg", "rofsl", "dsvd", "calfat")
"""The order of lists: the flagships, then ours, then Flower's."""


class Named(Registered):
    """A strategy by name, with its settings."""

    needs_losses: ClassVar[bool] = False
    """Whether clients must report their loss before and after training (two extra passes)."""

    @classmethod
    def variant(cls, options: Mapping[str, Value]) -> type[Named]:
        """The class that has these options, where it depends on one of them."""
        return cls

    def least_updates(self) -> int:
        """How many updates the rule needs in a round."""
        return 1

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """Of this many replies, how many it leaves out in every round, even if all are honest; and the setting that
        says so, empty if none does."""
        return 0, ""

    def is_mean(self) -> bool:
        """Whether a client counts by the length of its update, so that one can carry the model away."""
        return False

    def server_data_for(self) -> str:
        """The setting that asks for data at the server; empty: none does."""
        return ""

    def client_defaults(self, experiment: Experiment) -> Mapping[str, Value]:
        """How clients of this strategy train if the experiment does not say: `client.` settings by name."""
        return {}

    def tell_clients(self, experiment: Experiment) -> Mapping[str, Value]:
        """What its clients are told with every request of this experiment."""
        return {}

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot work in this experiment, before anything starts."""
        asking = self.server_data_for()
        if asking and experiment.task.server_data == "none":
            raise UserError(f"{asking} needs server data; set task.server-data (rendered, folder:, npz:, holdout:N)")


@dataclass_transform(kw_only_default=True, field_specifiers=(setting, dataclasses.field))
def strategy(name: str, paper: str) -> Callable[[type[T]], type[T]]:
    """Enter a class under this name. It becomes a dataclass; the first line of its docstring describes it."""

    def enter(cls: type[T]) -> type[T]:
        made: Any = with_settings(cls)
        STRATEGIES.enter(made, name, paper)
        return made

    return enter


def with_settings(cls: type[T]) -> type[T]:
    """The class as a dataclass, so that its settings are arguments too; a dataclass is left unchanged."""
    is_made = "__dataclass_fields__" in vars(cls)
    return cls if is_made else dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)


def _rank(cls: type[Named]) -> tuple[bool, int, str]:
    name = cls.name
    return name.startswith("flwr-"), FIRST.index(name) if name in FIRST else len(FIRST), name


STRATEGIES: Choices[Named] = Choices("strategy", "strategies", "strategy.name", ROOM, _rank)
strategies, find = STRATEGIES.all, STRATEGIES.choose


def by_class_name() -> dict[str, type[Named]]:
    """What thistle.strategies exports: our own strategies (not Flower's) by their classes' names and aliases."""
    ours = [
        cls
        for name, cls in strategies().items()
        if cls.__module__.startswith(f"{ROOM}.") and not name.startswith("flwr-")
    ]
    modules = [vars(sys.modules[cls.__module__]) for cls in ours]
    return {key: value for names in modules for key, value in names.items() if _is_one_of(ours, value)}


def _is_one_of(classes: Collection[type], value: object) -> bool:
    return isinstance(value, type) and value in classes
