"""`thistle export`: write the final model as a file that other programs can run, with a model card."""

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
        typer.Option("--format", help="onnx and torchscript run as they are; safetensors holds only the weights."),
    ] = Format.TORCHSCRIPT,
    output: Annotated[
        str, typer.Option(metavar="DIR", help="Where to put the model and its card; default: RUN/export.")
    ] = "",
    out: Out = "runs",
) -> None:
    """Export the final model, check the exported file by running it, and write a model card."""
    from thistle.results.export import export_run

    made = export_run(run, form.value, Path(output).expanduser() if output else None, out)
    results.print(f"model: {made.model} ({made.model.stat().st_size / 1e6:.2f} MB)", markup=False, soft_wrap=True)
    results.print(f"card: {made.card}", markup=False, soft_wrap=True)
    results.print(f"checked: {made.checked}", markup=False, soft_wrap=True)
