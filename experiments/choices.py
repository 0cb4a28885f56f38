"""Classes that an experiment chooses by name, each with its own settings: the fields of a dataclass.

    ATTACKS: Choices[PoisoningAttack] = Choices("attack", "attacks", "attack.kind", "thistle.attacks.poisoning", rank)

A room makes one of these and a decorator that enters classes (thistle.strategies.registry, thistle.attacks.registry).
Whatever else needs to know what there is (validation, `thistle list`, the guide) asks it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, create_model

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import KEYS, explain
from thistle.experiments.registry import Registry
from thistle.experiments.settings import Section, Value, dashed

T = TypeVar("T")
ABOUT, DECLARED, TRIED = "about", "declared", "tried"
"""In a dataclass field's metadata: what the setting means, and the values at which results and stress measure it."""
SECTIONS: dict[type[Registered], type[Section]] = {}
"""What `settings_of` has made so far."""


def setting(about: str, *, default: T, declared: tuple[Any, ...] = (), tried: tuple[Any, ...] = ()) -> T:
    """A field that an experiment may set; its type says which values are allowed.

    `declared`: the values at which docs/results.md measures it. `tried`: those at which `thistle stress` tries it, the
    most important one first; by default the declared ones.
    """
    return dataclasses.field(default=default, metadata={ABOUT: about, DECLARED: declared, TRIED: tried or declared})


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


class _Made(Section):
    """`setting` documents the subclasses' fields, so there is no need to read their source."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _section(cls: type[Registered]) -> type[Section]:
    fields = [field for field in dataclasses.fields(cls) if ABOUT in field.metadata]  # type: ignore[arg-type]
    types = get_type_hints(cls, include_extras=True)
    made: dict[str, Any] = {
        field.name: (types[field.name], Field(default=field.default, description=field.metadata[ABOUT]))
        for field in fields
    }
    return create_model(cls.__name__, __base__=_Made, __doc__=cls.__doc__, **made)


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


class Choices(Registry[type[R]]):
    """Registered classes that an experiment chooses by name, each with its own settings."""

    def __init__(self, kind: str, plural: str, key: str, package: str, rank: Callable[[type[R]], Any]) -> None:
        """`key`: the experiment's key that holds the name; the rest of its section holds the settings."""
        super().__init__(kind, package, lambda name: rank(self[name]), listed=plural)
        self.key = key

    @property
    def prefix(self) -> str:
        """What the keys of its section begin with."""
        return self.key.partition(".")[0] + "."

    def enter(self, cls: type[R], name: str, paper: str) -> None:
        """Under this name."""
        self.add(name, about(cls), paper)(cls)
        cls.name, cls.paper = name, paper

    def all(self) -> dict[str, type[R]]:
        """All of them by name, in order."""
        return dict(self.items())

    def choose(self, name: str, key: str = "") -> type[R]:
        """The class of this name, or an error that offers the nearest; `key`: where the name comes from."""
        return self.find(name, key or self.key)

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
