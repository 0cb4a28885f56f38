"""Records as bytes, for the audit log: the same records give the same bytes, and from a model's reply it can be made.

A line of JSON that names what follows, then the arrays' own bytes, one after the other. Replies are as they came: what
is not of the kind that its record declares is named by its type only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from thistle.protocol.cohort import Record

KINDS: dict[type, str] = {ArrayRecord: "arrays", MetricRecord: "metrics", ConfigRecord: "config"}


def pack(records: Mapping[str, Record]) -> Iterator[bytes]:
    """First the line, then the bytes that it speaks of."""
    described = {str(name): _described(record) for name, record in records.items()}
    yield json.dumps(described, separators=(",", ":")).encode() + b"\n"
    for record in records.values():
        if type(record) is ArrayRecord:
            yield from (array.data for array in record.values() if _is_plain(array))


def _described(record: Record) -> list[Any]:
    kind = KINDS.get(type(record), "")
    if kind == "arrays":
        return [kind, [[str(name), *_array(array)] for name, array in record.items()]]
    return [kind, {str(name): _value(value) for name, value in record.items()} if kind else type(record).__name__]


def _array(array: object) -> list[Any]:
    """Type, shape, encoding and number of bytes."""
    if not _is_plain(array):
        return [type(array).__name__]
    assert isinstance(array, Array)
    return [str(array.dtype), [int(side) for side in array.shape], str(array.stype), len(array.data)]


def _is_plain(array: object) -> bool:
    return type(array) is Array and type(array.data) is bytes and all(isinstance(side, int) for side in array.shape)


def _value(value: object) -> Any:
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return value if isinstance(value, bool | int | float | str) else type(value).__name__
