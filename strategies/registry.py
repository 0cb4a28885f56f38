"""The strategies by name. Each enters itself where it is written: one file, and nothing to edit elsewhere.

@strategy("trimmed-mean", "Yin et al. 2018")
class TrimmedMean(Pipeline):
    \"\"\"The coordinate mean without the extremes.\"\"\"

    trim: Share = setting("the share that is cut off at each end", default=0.2)

    def rule(self, updates, weights): ...
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

from pydantic import Field, ValidationError, create_model

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment, explain
from thistle.experiments.settings import Section, Value, dashed

T = TypeVar("T")
ROOM = "thistle.strategies"
ABOUT = "about"
"""In a dataclass field's metadata: what the setting means."""
REGISTERED: dict[str, type[Named]] = {}
SECTIONS: dict[type[Named], type[Section]] = {}
"""What `settings_of` has made so far."""
FIRST = ("fedavg", "rofsl", "dsvd", "calfat")
"""The order of lists: the flagships, then ours, then Flower's."""


def setting(about: str, *, default: T) -> T:
    """A field of a strategy that an experiment may set; its type says which values are allowed."""
    return dataclasses.field(default=default, metadata={ABOUT: about})


class Named:
    """A strategy by name, with its settings."""

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    needs_losses: ClassVar[bool] = False
    """Whether clients must report their loss before and after training (two extra passes)."""

    def __post_init__(self) -> None:
        """Refuse values that a setting cannot have, however they came here."""
        given = {name: getattr(self, name) for name in settings_of(type(self)).model_fields}
        checked(type(self), given, f"{type(self).__name__}: ", dash=False)

    @classmethod
    def variant(cls, options: Mapping[str, Value]) -> type[Named]:
        """The class that has these options, where it depends on one of them."""
        return cls

    def least_updates(self) -> int:
        """How many updates the rule needs in a round."""
        return 1

    def is_mean(self) -> bool:
        """Whether a client counts by the length of its update, so that one can carry the model away."""
        return False

    def server_data_for(self) -> str:
        """The setting that asks for data at the server; empty: none does."""
        return ""

    def client_defaults(self, experiment: Experiment) -> Mapping[str, Value]:
        """How clients of this strategy train where the experiment says nothing: `client.` settings by name."""
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
        made: Any = dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
        if name in REGISTERED and REGISTERED[name].__module__ != made.__module__:
            raise ValueError(f"strategy {name!r}: there are two, in {REGISTERED[name].__module__} and {cls.__module__}")
        made.name, made.paper = name, paper
        REGISTERED[name] = made
        return made

    return enter


def strategies() -> dict[str, type[Named]]:
    """All of them by name, once every module of this room has been imported."""
    _import_all()
    return {name: REGISTERED[name] for name in sorted(REGISTERED, key=_rank)}


def _rank(name: str) -> tuple[bool, int, str]:
    return name.startswith("flwr-"), FIRST.index(name) if name in FIRST else len(FIRST), name


@cache
def _import_all() -> None:
    room = importlib.import_module(ROOM)
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)


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


def about(cls: type[Named]) -> str:
    """The first line of its docstring."""
    return (cls.__doc__ or "").partition("\n")[0].removesuffix(".")


def settings_of(cls: type[Named]) -> type[Section]:
    """The settings of a strategy as a section: types, defaults, what they mean."""
    if cls not in SECTIONS:
        SECTIONS[cls] = _section(cls)
    return SECTIONS[cls]


def _section(cls: type[Named]) -> type[Section]:
    fields = [field for field in dataclasses.fields(cls) if ABOUT in field.metadata]  # type: ignore[arg-type]
    types = get_type_hints(cls, include_extras=True)
    made: dict[str, Any] = {
        field.name: (types[field.name], Field(default=field.default, description=field.metadata[ABOUT]))
        for field in fields
    }
    return create_model(cls.__name__, __base__=Section, __doc__=cls.__doc__, **made)


def checked(cls: type[Named], given: Mapping[str, Any], prefix: str, dash: bool = True) -> Section:
    """The settings with these values; raises UserError in which `prefix` stands before the first bad one."""
    section = settings_of(cls)
    try:
        return section.model_validate(dict(given))
    except ValidationError as error:
        raise UserError(explain(error, section.model_fields, prefix, dash)) from None


def find(name: str) -> type[Named]:
    """The strategy of this name, or an error that offers the nearest."""
    known = strategies()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise UserError(
            f"strategy.name = {name!r}: no such strategy; did you mean {near[0]}? (thistle list strategies)"
        )
    return known[name]


def owners(key: str) -> Iterator[str]:
    """The strategies that have this setting."""
    for name, cls in strategies().items():
        if key in settings_of(cls).model_fields:
            yield name


def unknown_setting(key: str, name: str, known: Collection[str]) -> str:
    """For a key that no strategy has."""
    near = difflib.get_close_matches(key, [dashed(one) for one in known], n=1, cutoff=0.5)
    return f"strategy.{key}: {name} has no such setting" + (f"; did you mean strategy.{near[0]}?" if near else "")
