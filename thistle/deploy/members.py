"""Who may take part: keys registered with Flower, and the clients bound to each (for server/transport/hosts.py)."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thistle.deploy.nodeconfig import MOST
from thistle.deploy.state import State
from thistle.engines.flower_programs import NAME, Flwr
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import read_json, write_json
from thistle.experiments.settings import parse_ids
from thistle.protocol.text import last_line, printable
from thistle.server.transport.hosts import LONGEST_NAME


@dataclass
class Members:
    """The bindings of a server: node id → clients, own-data, name, key."""

    state: State

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes them meanwhile: who comes second waits."""
        with (self.state.path / "bindings.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def all(self) -> dict[str, dict[str, Any]]:
        if not self.state.bindings.is_file():
            return {}
        try:
            return dict(read_json(self.state.bindings))
        except ValueError:
            raise UserError(f"{self.state.bindings}: cannot be read; repair it or remove it") from None

    def find(self, text: str) -> str:
        """The node id that a name, an id or a public key's file means."""
        members = self.all()
        if text in members:
            return text
        wanted = fingerprint(Path(text)) if Path(text).is_file() else ""
        for node, said in members.items():
            if said.get("name") == text or (wanted and said.get("key") == wanted):
                return node
        known = ", ".join(str(said.get("name", node)) for node, said in members.items()) or "none"
        raise UserError(f"{text}: no such node; known nodes: {known}")

    def check(self, clients: str, but: str) -> None:
        """Refuse clients that another node has."""
        wanted = set(parse_ids("--clients", clients, MOST, 10**6))
        if not wanted:
            raise UserError("--clients: name at least one client, such as 0-9")
        for node, said in self.all().items():
            shared = wanted & set(parse_ids("bindings", said["clients"], MOST, 10**6))
            if node != but and shared:
                raise UserError(f"--clients {clients}: {min(shared)} is {said.get('name', node)}'s already")

    def check_name(self, name: str, but: str) -> None:
        """Refuse one that would not tell a site from another, or not on one line."""
        if not name or name != printable(name, LONGEST_NAME):
            raise UserError(f"--name {printable(name)!r}: should be 1 to {LONGEST_NAME} printable characters")
        if any(node != but and said.get("name") == name for node, said in self.all().items()):
            raise UserError(f"--name {name}: another node has this name; choose a different one")

    def replies(self, clients: int, online: Collection[str]) -> tuple[int, int]:
        """Of an experiment's clients, how many the nodes online stand for, and how many of the nodes have any."""
        members = {node: said for node, said in self.all().items() if node in online}
        if not members:  # on loopback nobody is bound: every node may run everybody
            return clients, len(online)
        counts = [
            sum(one < clients for one in parse_ids("bindings", said["clients"], MOST, 10**6))
            for said in members.values()
        ]
        return sum(counts), sum(count > 0 for count in counts)

    def bind(self, node: str, clients: str, own_data: bool, name: str, key: str) -> None:
        entry = {"clients": clients, "own-data": own_data, "name": name, "key": key}
        write_json(self.state.bindings, {**self.all(), node: entry})

    def drop(self, node: str) -> None:
        write_json(self.state.bindings, {key: value for key, value in self.all().items() if key != node})


def fingerprint(key: Path) -> str:
    """Of a public key's file, without its comment."""
    parts = key.read_text(encoding="utf-8", errors="replace").split()
    if len(parts) < 2 or not parts[0].startswith("ecdsa-sha2-nistp"):
        raise UserError(f"{key}: not a node's public key (thistle certs writes them to server/nodes/NAME.pub)")
    return hashlib.sha256(" ".join(parts[:2]).encode()).hexdigest()


def register(flwr: Flwr, key: Path, name: str) -> str:
    """Make a key known to Flower; returns the node's id."""
    answer = flwr.call("supernode", "register", str(key), NAME, "--name", name)
    if "node-id" not in answer:
        reason = last_line(str(answer.get("error-message") or answer or "no answer"))
        if "already in use" in reason:
            reason = "the key is or was in use: a revoked key is never admitted again, make a new one (thistle certs)"
        raise UserError(f"{key}: Flower refuses it: {reason}")
    return str(answer["node-id"])


def unregister(flwr: Flwr, node: str) -> None:
    answer = flwr.call("supernode", "unregister", node, NAME)
    if not answer.get("success"):
        raise UserError(f"Flower did not unregister {node}: {last_line(str(answer.get('error-message') or answer))}")


def listed(flwr: Flwr) -> list[dict[str, Any]]:
    """All nodes that Flower knows: node-id, status, …"""
    return list(flwr.call("supernode", "list", NAME).get("nodes", []))
