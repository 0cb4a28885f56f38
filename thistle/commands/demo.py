"""`thistle demo`: four ways to aggregate the same poisoned federation, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from thistle.commands.options import NewOut, OnEngine, Workers
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.results.detected import detected
from thistle.results.shown import mean_of
from thistle.running.launch import Engine, Launch, engine_for
from thistle.running.prepare import claim_folder, make_experiment
from thistle.terminal.screen import results, table

PRESET = "digits-mix"
STRATEGIES = {
    "fedavg": "FedAvg",
    "rfa": "RFA (GeoMed)",
    "server-alone": "server alone",
    "rofsl": "RoFSL",
}


def demo(
    out: NewOut = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all four runs.")
    ] = None,
    workers: Workers = None,
    engine: OnEngine = Engine.RAY,
) -> None:
    """Train on digits while 60 % of the clients attack: FedAvg, RFA, server data alone and RoFSL."""
    launch = Launch(engine, quiet=False, summary=False)
    whole = make_experiment(PRESET, overrides or [], "demo", out, workers)
    done: dict[str, RunFolder] = {}
    with engine_for(engine, whole.runtime.ray_address) as runner:
        launch.check(whole)
        _, home = claim_folder(whole, exact=False)
        for name in STRATEGIES:
            chosen = ["stop.lost-if-rejected=false", *(overrides or []), f"strategy.name={name}"]
            experiment = make_experiment(PRESET, chosen, name, str(home.path), workers)
            experiment, folder = claim_folder(experiment, exact=True)
            code = launch.carry_out(runner, experiment, folder, launch.check(experiment))
            if code:
                raise typer.Exit(code)
            done[name] = folder
    show(done, whole, home.path)


def show(done: dict[str, RunFolder], experiment: Experiment, home: Path) -> None:
    """The table on stdout, the curves as a picture."""
    from thistle.results.draw import draw_accuracy

    attack = experiment.attack
    title = f"{experiment.task.name}, {attack.fraction:.0%} of {experiment.task.clients} clients attack ({attack.kind})"
    summaries = {STRATEGIES[name]: read_json(folder.summary) for name, folder in done.items()}
    mean = mean_of(summary["evaluations_averaged"] for summary in summaries.values())
    rows = [_row(name, summary, mean) for name, summary in summaries.items()]
    results.print(table(title, list(rows[0]), [list(row.values()) for row in rows]))
    picture = home / "accuracy.png"
    draw_accuracy({STRATEGIES[name]: folder for name, folder in done.items()}, title, picture)
    results.print(f"curves: {picture}", markup=False, soft_wrap=True)
    results.print(f"run folders: {home}", markup=False, soft_wrap=True)
    results.print(f"next: thistle report {home}", markup=False, soft_wrap=True)


def _row(name: str, summary: dict[str, Any], mean: str) -> dict[str, str]:
    """In 80 columns: names of two words stand one above the other."""
    short = mean.replace("the ", "").removesuffix(" evaluations").replace(" last", "\nlast")
    fields = {"last": "last_accuracy", "best": "max_accuracy", short: "final_accuracy"}
    found = {column.replace(" ", "\n"): value for column, value in detected(summary).items()}
    return {"strategy": name, **{column: f"{summary[field]:.1%}" for column, field in fields.items()}, **found}
