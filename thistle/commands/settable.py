"""A command that has `--set`: if you type a setting as an option, the error says how to set it."""

from __future__ import annotations

from click import Context, NoSuchOption
from typer.core import TyperCommand

from thistle.experiments.experiment import KEYS


class Settable(TyperCommand):
    """For `--rounds 5` and `--lr 0.1`, suggest `--set rounds=…` and `--set client.lr=…`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            keys = settings_called(error.option_name.lstrip("-"))
            if not keys:
                raise
            how = " or ".join(f"--set {key}=…" for key in keys)
            raise NoSuchOption(error.option_name, f"No such option {error.option_name!r}; use {how}", ctx=ctx) from None


def settings_called(name: str) -> list[str]:
    """The settings of this name, whole or without its section."""
    return [name] if name in KEYS else [key for key in KEYS if key.rpartition(".")[2] == name]
