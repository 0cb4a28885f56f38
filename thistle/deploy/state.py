"""Where a server or a node keeps what must survive it.

server/   flwr/ (Flower's home and the address for `flwr`), state.db, bindings.json, superexec.key, audit.* (log, keys),
          server.json (who listens where), submitted.jsonl (whose number at Flower is whose name),
          gateway/ (nginx's configuration and its access log), logs/, runs/
node-…/   flwr/, superexec.key, server.json, logs/
"""

from __future__ import annotations

import os
import secrets
import shlex
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thistle.experiments.chain import Chain
from thistle.experiments.errors import UserError
from thistle.experiments.locks import holding, is_held
from thistle.experiments.runfolder import read_json, write_json

VARIABLE = "THISTLE_STATE"


def root() -> Path:
    """The folder around all states of this user."""
    return Path(os.environ.get(VARIABLE) or "~/.thistle").expanduser().absolute()


@dataclass(frozen=True)
class State:
    """Paths inside one state folder."""

    path: Path

    @property
    def home(self) -> Path:
        return self.path / "flwr"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def bindings(self) -> Path:
        return self.path / "bindings.json"

    @property
    def gateway(self) -> Path:
        return self.path / "gateway"

    @property
    def access_log(self) -> Path:
        return self.gateway / "access.log"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def audit(self) -> Chain:
        """Its log, and the key that signs it."""
        return Chain(self.path)

    @property
    def about(self) -> Path:
        return self.path / "server.json"

    def create(self) -> None:
        """Make it, readable by nobody else."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.home, self.logs):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"--state: cannot make {self.path}: {error.strerror}") from None

    def secret(self) -> Path:
        """What a superexec shows to its SuperLink or SuperNode; made when it is first needed."""
        path = self.path / "superexec.key"
        if not path.is_file():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        return path

    def held(self) -> AbstractContextManager[None]:
        """One process looks after it at a time."""
        return holding(self.path, "already in use by a running thistle deploy")

    def is_held(self) -> bool:
        return is_held(self.path)

    def tell(self, about: dict[str, Any]) -> None:
        """For the commands that come later: who listens where."""
        write_json(self.about, about)

    def told(self) -> dict[str, Any]:
        return read_json(self.about) if self.about.is_file() else {}


def again(server: State, *words: str) -> str:
    """A `thistle deploy` command for this server, as one can type it."""
    usual = server.path in (root() / "server", root() / "local")
    return shlex.join(["thistle", "deploy", *words, *([] if usual else ["--state", str(server.path)])])


def running_server(given: str) -> State:
    """The state of the server that runs on this machine: the one that was named, else the only one there is."""
    if given:
        state = State(Path(given).expanduser().absolute())
        if not state.is_held():
            raise UserError(f"--state {given}: no server runs there; start it with: thistle deploy server")
        return state
    found = [state for state in (State(root() / "server"), State(root() / "local")) if state.is_held()]
    if not found:
        raise UserError("no server runs on this machine; start one with: thistle deploy local 4")
    if len(found) > 1:
        raise UserError(f"two servers run on this machine: choose one with --state {found[0].path}")
    return found[0]
