"""One message per host with many clients in it: how both sides pack and unpack it.

A request holds the records that all of its clients share once, what a client has for itself under "<id>/<name>",
and a `cohort` record with the ids to run. A reply holds every client's records under "<id>/<name>"; a client that
failed has "<id>/error".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from thistle.protocol.text import last_line

ACTION = "cohort"
RECORD = "cohort"
FAILURE = "error"

Record = ArrayRecord | ConfigRecord | MetricRecord


def pack_request(contents: Mapping[int, RecordDict]) -> RecordDict:
    """The content of one host's message: what the strategy made for each of these clients."""
    first = next(iter(contents.values()))
    shared = {name: record for name, record in first.items() if _is_shared(name, record, contents)}
    packed: dict[str, Record] = dict(shared)
    for client, content in contents.items():
        if content is not first or len(shared) < len(first):
            packed |= {f"{client}/{name}": record for name, record in content.items() if name not in shared}
    packed[RECORD] = ConfigRecord({"ids": list(contents)})
    return RecordDict(packed)


def _is_shared(name: str, record: Record, contents: Mapping[int, RecordDict]) -> bool:
    return all(content.get(name) is record for content in contents.values())


def unpack_request(content: RecordDict) -> dict[int, RecordDict]:
    """What each client of this host should see."""
    asked = cast(ConfigRecord, content[RECORD])  # content.config_records would keep all of it until a collection
    ids = cast(list[int], asked["ids"])
    shared: dict[str, Record] = {}
    own: dict[str, dict[str, Record]] = {}
    for key, record in content.items():
        client, slash, name = key.partition("/")
        if slash:
            own.setdefault(client, {})[name] = record
        elif key != RECORD:
            shared[key] = record
    plain = RecordDict(shared)
    return {c: RecordDict({**shared, **own[str(c)]}) if str(c) in own else plain for c in ids}


def pack_replies(replies: Iterable[tuple[int, Mapping[str, Record] | BaseException | str]]) -> RecordDict:
    """One host's reply: the records, or the failure, of each of its clients."""
    packed: dict[str, Record] = {}
    for client, reply in replies:
        if isinstance(reply, Mapping):
            packed |= {f"{client}/{name}": record for name, record in reply.items()}
        else:
            packed[f"{client}/{FAILURE}"] = ConfigRecord({"reason": describe(reply)})
    return RecordDict(packed)


def describe(failure: BaseException | str) -> str:
    """A failure as one bounded line: what a traceback ends with."""
    if isinstance(failure, str):
        return last_line(failure)
    return last_line(f"{type(failure).__name__}: {failure}")


def unpack_replies(content: RecordDict, ids: Iterable[int]) -> Iterator[tuple[int, dict[str, Record] | str]]:
    """For each client asked for: its records, or the reason why there are none."""
    found: dict[str, dict[str, Record]] = {}
    for key, record in content.items():
        sender, slash, name = key.partition("/")
        if slash:
            found.setdefault(sender, {})[name] = record
    for client in ids:
        records = found.get(str(client), {})
        failure = records.get(FAILURE)
        if isinstance(failure, ConfigRecord):
            yield client, last_line(str(failure.get("reason", "")))
        elif not records:
            yield client, "the host sent no result for this client"
        else:
            yield client, records
