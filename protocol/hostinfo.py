"""What a host reports about itself when the server asks whether it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from flwr.app import ConfigRecord, RecordDict

RECORD = "host"
OWN_DATA = "own"


@dataclass(frozen=True)
class HostInfo:
    """Text from elsewhere: the server bounds it before it believes any of it."""

    torch: str = ""
    machine: str = ""
    device: str = ""
    name: str = ""
    ray_node: str = ""
    data: str = ""
    """`own`: its clients train on its own data."""
    held_out: str = ""
    """How many of its own examples it keeps for testing; empty: none."""
    clients: str = ""
    """The clients that it wants to be, such as "0-9,12"."""
    site: str = ""
    """What its owner calls it; the administrator's name for it counts more."""

    def records(self) -> RecordDict:
        """As it travels."""
        return RecordDict({RECORD: ConfigRecord({_key(name): value for name, value in asdict(self).items()})})

    def about(self) -> dict[str, str]:
        """For the record of the run: all but the claim."""
        return {_key(name): value for name, value in asdict(self).items() if name != "clients"}

    @classmethod
    def read(cls, said: Mapping[str, str]) -> HostInfo:
        """From the record's texts; unknown keys are ignored."""
        return cls(**{field.name: said.get(_key(field.name), "") for field in fields(cls)})


def _key(name: str) -> str:
    return name.replace("_", "-")
