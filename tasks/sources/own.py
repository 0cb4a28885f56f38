"""Data that a function of the user's makes: `module:factory`, see docs/own.md."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from thistle.experiments.errors import UserError
from thistle.experiments.plugins import content_of, make_own, wrong_result
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.npz import WANTED, put_arrays
from thistle.tasks.sources.registry import Found


def own_source(name: str, key: str, bits: int = 16) -> Found:
    """What the user's function makes; it is called again only when its code changes."""
    return Found(["own", content_of(name, key), name, bits], partial(_read, name, key, bits), name)


def _read(name: str, key: str, bits: int, work: Workspace) -> tuple[str, ...]:
    """A mapping with the arrays of an npz file."""
    made = make_own(name, key)
    if not isinstance(made, Mapping):
        raise wrong_result(name, key, f"a mapping with {', '.join(WANTED)}", made)
    where = f"{key} = {name!r}"
    try:
        arrays = {array: np.asarray(made[array]) for array in WANTED if array in made}
    except Exception as error:
        raise UserError(f"{where}: not arrays: {error}") from None
    return put_arrays(where, arrays, work, bits)
