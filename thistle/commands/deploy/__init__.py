"""`thistle deploy`: a federation of real processes, on one machine or many."""

from __future__ import annotations

import typer

from thistle.commands.deploy import clean, doctor, local, members, node, server, status, stop, submit
from thistle.commands.settable import Settable

app = typer.Typer(
    no_args_is_help=True,
    help="A federation of real processes, on one machine or many.",
    suggest_commands=False,  # click suggests them too
)
app.command("local")(local.local)
app.command("server")(server.server)
app.command("node")(node.node)
app.command("submit", cls=Settable)(submit.submit)
app.command("resume")(submit.resume)
app.command("stop")(stop.stop)
app.command("status")(status.status)
app.command("add-node")(members.add_node)
app.command("revoke")(members.revoke)
app.command("doctor")(doctor.doctor)
app.command("clean")(clean.clean)
