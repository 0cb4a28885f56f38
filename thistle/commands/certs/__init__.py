"""`thistle certs`: keys and certificates, made in one place or by each site, and renewed."""

from __future__ import annotations

import typer
from click import Context
from typer.core import TyperGroup

from thistle.commands.certs.make import make
from thistle.commands.certs.renew import renew
from thistle.commands.certs.request import request, sign

USUAL = "make"


class FolderFirst(TyperGroup):
    """`thistle certs DIR …` means `make`; the other commands are written out."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [USUAL, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=FolderFirst,
    no_args_is_help=True,
    help="Keys and certificates of a federation. `thistle certs DIR --host NAME` makes them.",
    suggest_commands=False,  # click suggests them too
)
app.command(USUAL)(make)
app.command("request")(request)
app.command("sign")(sign)
app.command("renew")(renew)
