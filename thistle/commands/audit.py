"""`thistle audit verify`: check that an audit log and the runs in it are as the server wrote them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thistle.experiments.errors import UserError
from thistle.experiments.extras import require
from thistle.terminal.screen import complain, results, say

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from thistle.audit.reader import Reader, Run

app = typer.Typer(no_args_is_help=True, help="The audit log of a federation.", suggest_commands=False)
LOG = "audit.jsonl"


@app.callback()
def group() -> None:
    """The audit log of a federation."""


@app.command("verify")
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A server's state folder or a run folder, or its log.")],
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key, from a place where no one could change it.")
    ] = None,
    noted: Annotated[
        str, typer.Option(metavar="LINES:HASH", help="What this command printed earlier; those lines must exist.")
    ] = "",
    replay: Annotated[bool, typer.Option(help="If a run kept its replies, compute its models again.")] = True,
) -> None:
    """Check every line of the log, the run folders, and the models: exit code 1 if anything was changed."""
    folder = path.expanduser().absolute()
    folder = folder.parent if folder.is_file() else folder
    if not (folder / LOG).is_file():
        raise UserError(f"{path}: has no {LOG}; it should be a server's state folder, or an audited run's")
    if noted and not re.fullmatch(r"\d{1,18}:[0-9a-f]{64}", noted):
        raise UserError(f"--noted {noted}: should be LINES:HASH, as this command prints it")
    require("cryptography")
    from thistle.audit.reader import Reader, line_hash

    reader = Reader(folder, _public_key(key or folder / "audit.pub"))
    reader.check_end(noted)
    if not reader.problems:
        reader.follow_runs()
        for name, run in reader.runs.items():
            _check_run(reader, name, run, replay)
    for note in reader.notes:
        say(f"note: {note}")
    for problem in reader.problems:
        complain(problem)
    if reader.problems:
        complain(f"{folder / LOG}: NOT as the server wrote it")
        raise typer.Exit(1)
    _tell(f"{len(reader.whole)} lines, each signed and in its place; runs: {len(reader.runs)}")
    print_key = hashlib.sha256(reader.key.public_bytes_raw()).hexdigest()
    _tell(f"key: {print_key}" + ("" if key else "  (the key next to the log: compare it with the one you noted)"))
    if reader.whole:
        _tell(f"keep this elsewhere, for --noted next time: {len(reader.whole)}:{line_hash(reader.whole[-1])}")


def _check_run(reader: Reader, name: str, run: Run, replay: bool) -> None:
    """Its files, and its models where that can be."""
    from thistle.audit.reader import count, file_problems

    folder = reader.folder_of(name)
    if folder is None:
        reader.notes.append(f"{name}: its folder is gone, so only the log was checked")
        return
    try:
        problems = list(file_problems(run, folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems = [f"a file is unreadable: {error}"]
    reader.problems += [f"{name}: {problem}" for problem in problems]
    kept = bool(run.rounds) and all(line["kept"] for line in run.rounds.values())
    if kept and replay and not problems:
        from thistle.audit.replay import Replay

        again = list(Replay(run, folder).problems())
        reader.problems += [f"{name}: {problem}" for problem in again]
        _tell(f"{name}: {count(len(run.rounds))}" + ("" if again else ", each model computed again from the replies"))
    else:
        why = "" if kept else "; its replies were not kept, so its models could not be computed again"
        _tell(f"{name}: {count(len(run.rounds))}, as logged{why}")


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(f"{path}: should be an audit.pub, an Ed25519 key")
    return key


def _tell(line: str) -> None:
    results.print(line, markup=False, soft_wrap=True)
