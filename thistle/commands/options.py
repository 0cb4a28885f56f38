"""Arguments and options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name, or your own file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
Out = Annotated[str, typer.Option(help="The folder in which runs are looked for by name.")]
ServerState = Annotated[str, typer.Option(help="The server's state folder, where several run here.")]
