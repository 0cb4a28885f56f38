"""`thistle export`: the final model as a file that other programs run, with a card that says what it is."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from thistle.commands.options import Out
from thistle.terminal.screen import results


class Format(StrEnum):
    """What other programs read."""

    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"
    SAFETENSORS = "safetensors"


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a run's name below --out.")],
    form: Annotated[
        Format,
        typer.Option("--format", help="onnx and torchscript can be run as they are; safetensors is the weights."),
    ] = Format.TORCHSCRIPT,
    output: Annotated[
        str, typer.Option(metavar="DIR", help="Where to put model and card; default: export, in the run folder.")
    ] = "",
    out: Out = "runs",
) -> None:
    """Export the final model, run what was exported, and write its model card."""
    from thistle.results.export import export_run

    made = export_run(run, form.value, Path(output).expanduser() if output else None, out)
    results.print(f"model: {made.model} ({made.model.stat().st_size / 1e6:.2f} MB)", markup=False, soft_wrap=True)
    results.print(f"card: {made.card}", markup=False, soft_wrap=True)
    results.print(f"checked: {made.checked}", markup=False, soft_wrap=True)
