"""Things by name, each registered where it is written, with settings of its own: the fields of a dataclass.

    RULES: Registry[Rule] = Registry("rule", "rules", "rule.name", "thistle.rules")

A room makes one Registry and one decorator (thistle.strategies.registry, thistle.attacks.registry). Whatever else needs
to know what there is (validation, `thistle list`, the guide) asks the registry.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

from pydantic import Field, ValidationError, create_model

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import KEYS, explain
from thistle.experiments.settings import Section, Value, dashed

T = TypeVar("T")
ABOUT, DECLARED = "about", "declared"
"""In a dataclass field's metadata: what the setting means, and the values at which results are measured."""
SECTIONS: dict[type[Registered], type[Section]] = {}
"""What `settings_of` has made so far."""


def setting(about: str, *, default: T, declared: tuple[Any, ...] = ()) -> T:
    """A field that an experiment may set; its type says which values are allowed.

    `declared`: the values at which docs/results.md measures it.
    """
    return dataclasses.field(default=default, metadata={ABOUT: about, DECLARED: declared})


class Registered:
    """Base of everything that a registry holds."""

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Refuse values that a setting cannot have, however they came here."""
        checked(type(self), values_of(self), f"{type(self).__name__}: ", dash=False)


R = TypeVar("R", bound=Registered)


def about(cls: type[Registered]) -> str:
    """The first line of its docstring."""
    return (cls.__doc__ or "").partition("\n")[0].removesuffix(".")


def settings_of(cls: type[Registered]) -> type[Section]:
    """The settings of a class as a section: types, defaults, what they mean."""
    if cls not in SECTIONS:
        SECTIONS[cls] = _section(cls)
    return SECTIONS[cls]


def _section(cls: type[Registered]) -> type[Section]:
    fields = [field for field in dataclasses.fields(cls) if ABOUT in field.metadata]  # type: ignore[arg-type]
    types = get_type_hints(cls, include_extras=True)
    made: dict[str, Any] = {
        field.name: (types[field.name], Field(default=field.default, description=field.metadata[ABOUT]))
        for field in fields
    }
    return create_model(cls.__name__, __base__=Section, __doc__=cls.__doc__, **made)


def values_of(thing: Registered | Section) -> dict[str, Any]:
    """The settings of an object by name."""
    cls = type(thing)
    return {name: getattr(thing, name) for name in (cls if issubclass(cls, Section) else settings_of(cls)).model_fields}


def checked(cls: type[Registered], given: Mapping[str, Any], prefix: str, dash: bool = True) -> Section:
    """The settings with these values; raises UserError in which `prefix` stands before the first bad one."""
    section = settings_of(cls)
    try:
        return section.model_validate(dict(given))
    except ValidationError as error:
        raise UserError(explain(error, section.model_fields, prefix, dash)) from None


@dataclasses.dataclass(frozen=True)
class Registry(Generic[R]):
    """The classes of one kind by name."""

    noun: str
    plural: str
    """As in `thistle list PLURAL`."""
    key: str
    """The experiment's key that holds a name; its section holds the settings."""
    package: str
    """All of its modules are imported before anybody asks what there is."""
    rank: Callable[[type[R]], Any] = lambda cls: cls.name
    """The order of lists."""
    entries: dict[str, type[R]] = dataclasses.field(default_factory=dict)
    imported: set[str] = dataclasses.field(default_factory=set)

    @property
    def prefix(self) -> str:
        """What the keys of its section begin with."""
        return self.key.partition(".")[0] + "."

    def enter(self, cls: type[R], name: str, paper: str) -> None:
        """Under this name; two modules cannot have the same."""
        there = self.entries.get(name)
        if there is not None and there.__module__ != cls.__module__:
            raise ValueError(f"{self.noun} {name!r}: there are two, in {there.__module__} and {cls.__module__}")
        cls.name, cls.paper = name, paper
        self.entries[name] = cls

    def all(self) -> dict[str, type[R]]:
        """All of them by name, once every module of the package has been imported."""
        self._import_all()
        return {cls.name: cls for cls in sorted(self.entries.values(), key=self.rank)}

    def _import_all(self) -> None:
        if self.package in self.imported:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        self.imported.add(self.package)

    def find(self, name: str, key: str = "") -> type[R]:
        """The class of this name, or an error that offers the nearest; `key`: where the name comes from."""
        known = self.all()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise UserError(
                f"{key or self.key} = {name!r}: no such {self.noun}; did you mean {near[0]}? "
                f"(thistle list {self.plural})"
            )
        return known[name]

    def owners(self, option: str) -> Iterator[type[R]]:
        """The classes that have this setting."""
        return (cls for cls in self.all().values() if option in settings_of(cls).model_fields)

    def refuse_unknown(self, cls: type[R], name: str, options: Mapping[str, Value]) -> None:
        """Raise UserError for the first setting that the class does not have; the error says which ones have it."""
        known = settings_of(cls).model_fields
        for option, value in options.items():
            if option in known:
                continue
            key, others = self.prefix + dashed(option), [cls.name for cls in self.owners(option)]
            if others:
                text = str(value).lower() if isinstance(value, bool) else value
                raise UserError(f"{key} = {text}: {name} has no such setting; those that have it: {', '.join(others)}")
            raise UserError(self._unknown(key, name, [self.prefix + dashed(one) for one in known]))

    def _unknown(self, key: str, name: str, known: list[str]) -> str:
        """For a key that nobody has: most likely a slip of the keyboard."""
        common = [one for one in KEYS if one.startswith(self.prefix)]
        near = difflib.get_close_matches(key.removeprefix(self.prefix), _tails([*known, *common]), n=1, cutoff=0.5)
        if not near:
            return f"{key}: {name} has no such setting"
        meant = self.prefix + near[0]
        return f"{key}: {'no such key' if meant in common else f'{name} has no such setting'}; did you mean {meant}?"

    def left_behind(
        self, keys: Mapping[str, Any], changes: Mapping[str, Any], find: Callable[[str, Mapping[str, Any]], type[R]]
    ) -> set[str]:
        """The keys that these changes drop: settings of the old name that the new one does not have."""
        merged = {**keys, **changes}
        name = changes.get(self.key)
        if not isinstance(name, str) or name == keys.get(self.key):
            return set()
        own = [key for key in merged if key.startswith(self.prefix) and key not in KEYS]
        options = {key: key.removeprefix(self.prefix).replace("-", "_") for key in own}
        known = settings_of(find(name, {option: merged[key] for key, option in options.items()})).model_fields
        return {key for key, option in options.items() if option not in known and key not in changes}


def _tails(keys: list[str]) -> list[str]:
    return [key.partition(".")[2] for key in keys]
