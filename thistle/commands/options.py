"""Arguments and options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

from thistle.running.launch import Engine

Source = Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name, or your own file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
NewOut = Annotated[str, typer.Option("--out", help="The folder for run folders; default: runs.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Hosts to train on; default: one per core.")]
OnEngine = Annotated[Engine, typer.Option(help="ray: SuperLink and Ray workers; inline: this process.")]
KeepReplies = Annotated[
    bool, typer.Option("--keep-replies", help="Keep every reply for thistle audit verify; each is model-sized.")
]
Out = Annotated[str, typer.Option(help="The folder in which to look for runs by name.")]
ServerState = Annotated[str, typer.Option(help="The server's state folder, if several servers run here.")]
Cold = Annotated[
    bool, typer.Option("--cold", help="Start a new Python for each message: slower, less memory between messages.")
]
MetricsPort = Annotated[
    int,
    typer.Option("--metrics", min=0, max=65535, metavar="PORT", help="Metrics for Prometheus, on this loopback port."),
]


def with_replies(overrides: list[str] | None, keep: bool) -> list[str]:
    """The changes, with what `--keep-replies` means."""
    return [*(overrides or []), *(["run.keep-replies=true"] if keep else [])]
