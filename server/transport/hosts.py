"""The hosts of a federation: who is there, which clients each of them runs, and who is free.

In a simulation every host runs any client. A deployed node runs the clients that its administrator bound to it or,
without a binding, those it asks for first. What a node reports about itself is untrusted text: its length is bounded,
and it is accepted only if it takes nothing from another node.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from thistle.experiments.errors import UserError
from thistle.experiments.settings import parse_ids
from thistle.protocol.hostinfo import OWN_DATA, RECORD, HostInfo
from thistle.protocol.text import LONGEST, printable

logger = logging.getLogger("thistle")

BINDINGS = "THISTLE_BINDINGS"
"""In the server's environment: a JSON file {"<node id>": "0-9,12"}; only nodes in it are given clients.

{"<node id>": {"clients": "0-9,12", "own-data": true, "name": "north"}}: its clients' data is its own, so that nobody
knows its size; its site is called north.
"""
LONGEST_CLAIM, MOST_WORDS, LONGEST_NAME = 10_000, 20, 64
NOBODY = -1


@dataclass
class Host:
    """A node that has answered."""

    info: HostInfo
    claim: str
    name: str
    """The administrator's name for it or, without one, its own."""
    own_data: bool = False
    """Whether its clients train on data of its own, and not on shares of the experiment's task."""
    present: bool = True


@dataclass(frozen=True)
class Binding:
    """What the administrator says of a node."""

    clients: str
    own_data: bool = False
    name: str = ""


def read_bindings() -> dict[int, Binding] | None:
    """What the administrator bound to each node; None: nothing was, first come, first served."""
    path = os.environ.get(BINDINGS)
    if not path:
        return None
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return {int(node): _binding(said) for node, said in document.items()}
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise UserError(f"{BINDINGS} = {path}: cannot be read as {{node id: clients}}: {error}") from None


def _binding(said: object) -> Binding:
    if isinstance(said, Mapping):
        return Binding(
            str(said["clients"]), said.get("own-data") is True, printable(said.get("name", ""), LONGEST_NAME)
        )
    return Binding(str(said))


class Hosts:
    """Which host runs which of `clients` clients."""

    def __init__(self, clients: int, most: int, bindings: Mapping[int, Binding] | None = None) -> None:
        self.clients, self.most, self.bindings = clients, most, bindings
        self.members: dict[int, Host] = {}
        self._nodes: list[int] = []
        self._owner = None if bindings is None else np.full(clients, NOBODY)
        """Whose each client is, by its place in `_nodes`; None as long as every host runs any of them."""

    @property
    def shared(self) -> bool:
        """Whether any host may run any client."""
        return self._owner is None

    def join(self, node: int, content: RecordDict) -> None:
        """Take a node in by its answer to a ping; UserError where the answer or the claim will not do."""
        info = _read(content)
        said = Binding(info.clients, info.data == OWN_DATA, info.site)
        wanted = said if self.bindings is None else self.bindings.get(node, Binding(""))
        if wanted.clients or not self.shared:
            self._give(node, wanted.clients)
        self.members[node] = Host(info, wanted.clients, self._name(node, wanted.name), wanted.own_data)

    def _name(self, node: int, wanted: str) -> str:
        """The wanted name; its number if it has none, or if another node has that name."""
        taken = {host.name for other, host in self.members.items() if other != node}
        return wanted if wanted and wanted not in taken else f"node {node}"

    def _give(self, node: int, text: str) -> None:
        ids = parse_ids("clients", text, self.clients, self.most)
        if not ids:
            raise UserError("it claims no clients" if self.bindings is None else "no clients are bound to it")
        if self._owner is None:
            self._owner = np.full(self.clients, NOBODY)
            self._leave_out_who_claims_nothing()
        for place in sorted(set(self._owner[ids].tolist()) - {NOBODY}):
            other = self._nodes[place]
            if other != node and self.members[other].present:
                raise UserError(f"clients = {printable(text)!r}: some of them are node {other}'s")
        if node not in self._nodes:
            self._nodes.append(node)
        place = self._nodes.index(node)
        self._owner[self._owner == place] = NOBODY
        self._owner[ids] = place

    def _leave_out_who_claims_nothing(self) -> None:
        for node in [node for node, host in self.members.items() if not host.claim]:
            logger.warning("%s is left out: it claims no clients, but others do", self.called(node))
            del self.members[node]

    def see(self, nodes: Iterable[int]) -> list[int]:
        """Mark who is present and who is away; returns those that have not joined."""
        here = set(nodes)
        for node, host in self.members.items():
            if host.present != (node in here):
                host.present = node in here
                logger.info("%s %s", self.called(node), "is back" if host.present else "is away")
        return sorted(here - self.members.keys())

    def present(self) -> list[int]:
        """The hosts that can be addressed, sorted."""
        return sorted(node for node, host in self.members.items() if host.present)

    def called(self, node: int) -> str:
        """The node's name, also before it has joined, for people."""
        if node in self.members:
            return self.members[node].name
        bound = (self.bindings or {}).get(node)
        return bound.name if bound and bound.name else f"node {node}"

    def site(self, client: int) -> str | None:
        """The name of the node that runs this client; None where any may, or nobody does."""
        if self._owner is None or self._owner[client] == NOBODY:
            return None
        return self.members[self.owner(client)].name

    def owner(self, client: int) -> int:
        """The node that runs this client, where each has one."""
        assert self._owner is not None and self._owner[client] != NOBODY
        return self._nodes[self._owner[client]]

    def has_own_data(self, client: int) -> bool:
        """Whether the size of this client's data is its node's word alone."""
        return self._owner is not None and self._owner[client] != NOBODY and self.members[self.owner(client)].own_data

    def available(self, busy: Collection[int]) -> range | list[int]:
        """The clients whose host is present and not busy with an older round."""
        if self._owner is None:
            return range(self.clients)
        free = [self.members[node].present and node not in busy for node in self._nodes]
        return np.flatnonzero(np.array([*free, False])[self._owner]).tolist()


def _read(content: RecordDict) -> HostInfo:
    """What a node reports about itself, bounded."""
    record = content.config_records.get(RECORD)
    if record is None or len(content) != 1 or len(record) > MOST_WORDS:
        raise UserError("its answer is not what a Thistle host sends")
    claim = record.get("clients", "")
    if not isinstance(claim, str) or len(claim) > LONGEST_CLAIM:
        raise UserError("its claim to clients is not text like 0-9,12")
    said = {
        key: printable(value, LONGEST_NAME if key == "site" else LONGEST)
        for key, value in record.items()
        if key != "clients"
    }
    return HostInfo.read({**said, "clients": claim})
