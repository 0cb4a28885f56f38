"""What an attacker remembers: it travels with the server's messages in a simulation, and stays on a real node.

A simulated client has no place of its own: any host may run it next. So its reply carries what it wants to know again,
and the server, which does not look into it, sends it along when an attacker is next asked (thistle.server.transport).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from thistle.protocol.records import MEMORY, TIMES

Memory = Mapping[str, Tensor]


def read_memory(record: ArrayRecord | None) -> dict[str, Tensor] | None:
    """As it came; None: nobody asks this client to remember."""
    return None if record is None else {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def read_state(record: ArrayRecord | None) -> dict[str, np.ndarray] | None:
    """The strategy's state as it came."""
    return None if record is None else {name: array.numpy() for name, array in record.items()}


def write_memory(before: Memory, learnt: Memory) -> ArrayRecord:
    """What was learnt now (nothing: what was known stays), and that the client has been asked once more."""
    after = {**learnt, TIMES: torch.tensor(times(before) + 1)}
    return ArrayRecord({name: Array(np.array(tensor.numpy(), order="C")) for name, tensor in after.items()})


def times(memory: Memory | None) -> int:
    """How often the client was asked before."""
    return int(memory[TIMES]) if memory and TIMES in memory else 0


def recall(content: RecordDict, state: RecordDict, client: int) -> RecordDict:
    """On a real node: the request with what this client remembers."""
    return RecordDict({**content, MEMORY: state.get(_place(client), ArrayRecord())})


def retain(reply: RecordDict, state: RecordDict, client: int) -> RecordDict:
    """On a real node: the reply without what the client wants to know again, which stays here."""
    before, learnt = state.get(_place(client), ArrayRecord()), reply[MEMORY]
    assert isinstance(before, ArrayRecord) and isinstance(learnt, ArrayRecord)
    state[_place(client)] = ArrayRecord({**before, **learnt})
    return RecordDict({name: record for name, record in reply.items() if name != MEMORY})


def _place(client: int) -> str:
    return f"{MEMORY}/{client}"
