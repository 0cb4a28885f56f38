"""The command line. Contract: results on stdout, progress and messages on stderr.

Exit codes: 0 done; 1 a run or a cell failed, or a sweep is not as its file expects; 2 something the user can
fix, explained in one line; 3 of `verify`: another model, but in another environment; 130 and 143 stopped by Ctrl-C or
SIGTERM, resumable.
"""

from __future__ import annotations

import signal
import sys
from importlib.metadata import version as installed
from typing import Annotated, Any

import typer

from thistle.commands import (
    audit,
    certs,
    compare,
    demo,
    deploy,
    evaluate,
    export,
    leaderboard,
    listing,
    predict,
    report,
    resume,
    run,
    stress,
    sweep,
    verify,
    watch,
)
from thistle.commands.settable import Settable
from thistle.engines.flower_programs import EngineError
from thistle.experiments import extras
from thistle.experiments.errors import UserError
from thistle.terminal.screen import complain, results

app = typer.Typer(
    name="thistle",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click suggests them too
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        results.print(f"thistle {installed('thistle-fl')}")
        raise typer.Exit(0)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Robust federated learning on Flower."""


app.command("run", cls=Settable)(run.run)
app.command("resume")(resume.resume)
app.command("sweep", cls=Settable)(sweep.sweep)
app.command("stress", cls=Settable)(stress.stress)
app.command("verify")(verify.verify)
app.command("leaderboard")(leaderboard.leaderboard)
app.command("compare")(compare.compare)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("predict")(predict.predict)
app.command("export")(export.export)
app.command("list")(listing.list_)
app.command("demo", cls=Settable)(demo.demo)
app.add_typer(certs.app, name="certs")
app.add_typer(deploy.app, name="deploy")
app.add_typer(audit.app, name="audit")


def main() -> None:
    """Run a command; turn what went wrong into one line and an exit code."""
    terminated: list[int] = []

    def terminate(number: int, _: Any) -> None:
        """SIGTERM is handled as Ctrl-C is: whatever is open gets closed."""
        terminated.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        app()
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        lacking = extras.explain(error)
        if lacking is None:
            raise
        complain(str(lacking))
        sys.exit(2)
    except EngineError as error:
        complain(str(error))
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.filename is None:  # not about a user's file: our own fault, so show it in full
            raise
        complain(f"{error.filename2 or error.filename}: {error.strerror}")
        sys.exit(2)
    except SystemExit as end:
        sys.exit(143 if terminated else end.code)
