"""`thistle deploy clean`: old apps, logs and database rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thistle.deploy.cleaning import clean as clean_state
from thistle.deploy.state import State, root
from thistle.experiments.errors import UserError
from thistle.terminal.screen import results, say


def clean(
    state: Annotated[str, typer.Option(help="One state folder; default: each unused one in ~/.thistle.")] = "",
) -> None:
    """Remove what finished runs left in the state of a stopped server or node; runs, keys and nodes stay."""
    if state:
        found = [State(Path(state).expanduser().absolute())]
        if not found[0].home.is_dir():
            raise UserError(f"--state {state}: is not the state folder of a server or a node")
    else:
        found = [State(path.parent) for path in sorted([*root().glob("*/flwr"), *root().glob("local/*/flwr")])]
    for place in found:
        if not state and place.is_held():
            say(f"{place.path}: in use, left unchanged")
            continue
        for line in clean_state(place):
            results.print(line, markup=False, soft_wrap=True)
