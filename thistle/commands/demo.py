"""`thistle demo`: four ways to aggregate the same poisoned federation, under two attacks, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from thistle.terminal.screen import results, say, table

PRESET = "digits-mix"
STRATEGIES = {
    "fedavg": "FedAvg",
    "rfa": "RFA (GeoMed)",
    "rofsl": "RoFSL",
    "evidence": "Evidence",
}
ATTACKS: dict[str, list[str]] = {"mix": ["attack.kind=mix"], "ipm": ["attack.kind=ipm", "attack.strength=0.5"]}
"""The attack of RoFSL's paper, and one that RoFSL does not survive."""
Runs = Mapping[str, RunFolder]
"""By the name of their strategy."""


def demo(
    out: NewOut = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all eight runs.")
    ] = None,
    workers: Workers = None,
    engine: OnEngine = Engine.RAY,
) -> None:
    """Compare FedAvg, RFA, RoFSL and Evidence on digits while 60 % of the clients attack, in two ways."""
    launch = Launch(engine, quiet=False, summary=False)
    given = overrides or []
    whole = make_experiment(PRESET, given, "demo", out, workers)
    done: dict[str, tuple[Experiment, Runs]] = {}
    with engine_for(engine, whole.runtime) as runner:
        launch.check(whole)
        _, home = claim_folder(whole, exact=False)
        attacks = attacks_of(given)
        for number, (attack, settings) in enumerate(attacks.items()):
            folders: dict[str, RunFolder] = {}
            for place, name in enumerate(STRATEGIES, number * len(STRATEGIES) + 1):
                say(f"run {place} of {len(attacks) * len(STRATEGIES)}: {STRATEGIES[name]} under {attack}")
                chosen = ["stop.lost-if-rejected=false", *settings, *given, f"strategy.name={name}"]
                experiment = make_experiment(PRESET, chosen, f"{attack}-{name}", str(home.path), workers)
                experiment, folders[name] = claim_folder(experiment, exact=True)
                code = launch.carry_out(runner, experiment, folders[name], launch.check(experiment))
                if code:
                    raise typer.Exit(code)
            done[attack] = (experiment, folders)
    show(list(done.values()), home.path)


def attacks_of(overrides: Sequence[str]) -> dict[str, list[str]]:
    """Both; only the user's own where there is one."""
    own = [item.partition("=")[2] for item in overrides if item.partition("=")[0].strip() == "attack.kind"]
    return {own[-1].strip(): []} if own else ATTACKS


def show(done: Sequence[tuple[Experiment, Runs]], home: Path) -> None:
    """A table per attack on stdout, the curves as a picture."""
    from thistle.results.draw import draw_accuracy

    panels: dict[str, dict[str, RunFolder]] = {}
    for experiment, folders in done:
        named = {STRATEGIES[name]: folder for name, folder in folders.items()}
        panels[title := _title(experiment)] = named
        summaries = {name: read_json(folder.summary) for name, folder in named.items()}
        mean = mean_of(summary["evaluations_averaged"] for summary in summaries.values())
        rows = [_row(name, summary, mean) for name, summary in summaries.items()]
        results.print(table(title, list(rows[0]), [list(row.values()) for row in rows]))
    picture = home / "accuracy.png"
    draw_accuracy(panels, picture)
    results.print(f"curves: {picture}", markup=False, soft_wrap=True)
    results.print(f"run folders: {home}", markup=False, soft_wrap=True)
    results.print(f"next: thistle report {home}", markup=False, soft_wrap=True)


def _title(experiment: Experiment) -> str:
    attack, task = experiment.attack, experiment.task
    return f"{task.name}, {attack.fraction:.0%} of {task.clients} clients attack ({attack.kind})"


def _row(name: str, summary: dict[str, Any], mean: str) -> dict[str, str]:
    """In 80 columns: names of two words stand one above the other."""
    short = mean.replace("the ", "").removesuffix(" evaluations").replace(" last", "\nlast")
    fields = {"last": "last_accuracy", "best": "max_accuracy", short: "final_accuracy"}
    found = {column.replace(" ", "\n"): value for column, value in detected(summary).items()}
    return {"strategy": name, **{column: f"{summary[field]:.1%}" for column, field in fields.items()}, **found}
