"""`thistle deploy health`: whether the processes of this machine's servers and nodes answer; for containers' probes."""

from __future__ import annotations

import typer

from exchange.errors import UserError
from thistle.commands.deploy.status import answers
from thistle.deploy.state import State, root
from thistle.screen import results


def health() -> None:
    """Ask every process of the servers and nodes that run here, by gRPC; exit code 1 where one does not answer."""
    running = [state for state in map(State, sorted(root().glob("*"))) if state.is_held()]
    if not running:
        raise UserError(f"no server and no node runs with its state in {root()}")
    found: dict[str, bool] = {}
    for told in (state.told() for state in running):
        found |= {name: answers(address, told) for name, address in told.get("services", {}).items()}
    for name, up in found.items():
        results.print(f"{name}: {'up' if up else 'no answer'}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if found and all(found.values()) else 1)
