"""Which of Flower's runs is which experiment: Flower knows numbers, people know names. One line per submission."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from thistle.deploy.state import State, root
from thistle.engines.flower_programs import Flwr
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, read_lines, utc_now

OVER = "finished"


@dataclass(frozen=True)
class Submission:
    """An experiment that was handed to Flower; a run that was continued has several."""

    run_id: str
    name: str
    folder: str
    time: str

    @property
    def run(self) -> RunFolder:
        return RunFolder(Path(self.folder))


def _file(server: State) -> Path:
    return server.path / "submitted.jsonl"


def write_down(server: State, run_id: str, folder: Path) -> None:
    """As soon as Flower has given it a number: from then on it can be stopped by its name."""
    line = Submission(run_id, folder.name, str(folder), utc_now())
    with _file(server).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def submitted(server: State) -> list[Submission]:
    """In their order; lines of another form are passed over."""
    fields = Submission.__dataclass_fields__
    lines = (line for line in read_lines(_file(server)) if fields.keys() <= line.keys())
    return [Submission(**{name: str(line[name]) for name in fields}) for line in lines]


def find_going_on(server: State, flwr: Flwr, name: str) -> str:
    """Flower's number of the run of this name, or this number, that is not over yet."""
    numbers = [one.run_id for one in submitted(server) if one.name == name]
    if name.isdigit() and not numbers:
        numbers = [name]
    statuses = {str(run["run-id"]): str(run["status"]) for run in flwr.call("ls", "thistle").get("runs", [])}
    for number in reversed(numbers):
        if number in statuses and not statuses[number].startswith(OVER):
            return number
    if any(number in statuses for number in numbers):
        raise UserError(f"{name}: this run has ended; there is nothing to stop")
    names = {one.run_id: one.name for one in submitted(server)}
    going_on = [names.get(number, number) for number, status in statuses.items() if not status.startswith(OVER)]
    raise UserError(f"{name}: no such run here; running: {', '.join(going_on) or 'none'}")


def folders_of(name: str) -> Iterator[Path]:
    """Where a run of this name may be that was submitted on this machine."""
    for server in (State(root() / "server"), State(root() / "local")):
        yield server.runs / name
        yield from (Path(one.folder) for one in reversed(submitted(server)) if one.name == name)
