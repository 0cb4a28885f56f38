"""From what a user types to a checked experiment with its own run folder."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thistle.attacks.evasion.table import check_evaluation
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import (
    KEYS,
    Experiment,
    flatten_tables,
    is_key,
    parse_overrides,
    read_file,
    unknown_key,
)
from thistle.experiments.plugins import FORMS, pin
from thistle.experiments.runfolder import RunFolder
from thistle.tasks.threads import cores

PRESETS = Path(__file__).resolve().parents[1] / "presets"
SWEEPS = PRESETS / "sweeps"
SWEEP_WORDS = {"preset", "seeds", "axes", "zip", "expect"}
Overrides = Mapping[str, Any] | Sequence[str]
"""Changes to an experiment: a dictionary, or `key=value` pairs."""
PATHS = ("task.name", "task.server-data", "task.server-font", "attack.images")


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def preset_about(name: str) -> str:
    return about(PRESETS / f"{name}.toml")


def about(path: Path) -> str:
    """The first line of a file, if it is a comment."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first[1:].strip() if first.startswith("#") else ""


def find_experiment(source: str) -> Path:
    """A preset's file by name, or the user's own; a sweep, which has other tables than an experiment, is neither."""
    known = (SWEEPS / f"{source}.toml").is_file() and source not in preset_names()
    path = SWEEPS / f"{source}.toml" if known else find_file(source, PRESETS, "a preset", ", ".join(preset_names()))
    if known or SWEEP_WORDS & {key.partition(".")[0] for key in read_file(path)}:
        raise UserError(f"{source}: this is a sweep, not an experiment; run it with: thistle sweep {source}")
    return path


def find_file(source: str, folder: Path, what: str, choice: str) -> Path:
    """A file of `folder` by its name, or the user's own .toml; `what` and `choice` are for who meant neither."""
    names = [path.stem for path in folder.glob("*.toml")]
    if source in names:
        return folder / f"{source}.toml"
    path = Path(source).expanduser()
    if path.suffix == ".toml" or path.exists():
        return path
    near = difflib.get_close_matches(source, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else f" ({choice})"
    raise UserError(f"{source}: neither {what} nor a .toml file{hint}")


def make_experiment(
    source: str | Mapping[str, Any],
    overrides: Overrides = (),
    name: str = "",
    out: str = "",
    workers: int | None = None,
    deployed: bool = False,
) -> Experiment:
    """The experiment with everything resolved but its folder: from a preset, a file or, in Python, keys alone.

    `deployed`: it is for real nodes.
    """
    keys, stem, folders = read_source(source)
    flat = pin(changed(keys, read_overrides(overrides)), folders)
    return settle(flat, name or flat.get("run.name") or stem, out, workers, deployed, folders)


def read_source(source: str | Mapping[str, Any]) -> tuple[dict[str, Any], str, list[Path]]:
    """The keys of a preset, a file or a dictionary, a name for it, and where modules of the user's are looked for."""
    if isinstance(source, Mapping):
        return typed_keys(source), "run", [Path.cwd()]
    path = find_experiment(source)
    return read_file(path), path.stem, code_folders(path)


def changed(keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's keys with these changes: another strategy or attack drops settings that it does not have."""
    from thistle.attacks import registry
    from thistle.strategies import build

    dropped = build.left_behind(keys, changes) | registry.left_behind(keys, changes)
    return {key: value for key, value in {**keys, **changes}.items() if key not in dropped}


def known_key(key: str) -> bool:
    """Whether an experiment may have this key, and, if it is an attack's, whether there is an attack that has it."""
    from thistle.attacks.registry import ATTACKS

    if key in KEYS or not key.startswith(ATTACKS.prefix):
        return is_key(key)
    return any(ATTACKS.owners(key.removeprefix(ATTACKS.prefix).replace("-", "_")))


def read_overrides(overrides: Overrides) -> dict[str, Any]:
    """Changes as the command line has them, `key=value`, or as Python has them, a dictionary."""
    return typed_keys(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)


def typed_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from Python, dotted or nested; a path is a text, and a number of numpy's a number."""
    for key in keys:
        if not isinstance(key, str):
            raise UserError(f"{key!r}: should be a setting's name, such as 'client.lr'")
    flat = flatten_tables(keys)
    for key in flat:
        if not is_key(key):
            raise UserError(unknown_key(key))
    return {key: _plain_value(value) for key, value in flat.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _check_who_attacks(flat: Mapping[str, Any]) -> None:
    kind = flat.get("attack.kind", "none")
    if kind != "none" and not {"attack.fraction", "attack.clients"} & flat.keys():
        raise UserError(f"attack.kind = {kind}: nobody attacks; set attack.fraction or attack.clients")


def settle(
    keys: Mapping[str, Any],
    name: object,
    out: str = "",
    workers: int | None = None,
    deployed: bool = False,
    folders: Sequence[Path] = (),
) -> Experiment:
    """The experiment that these keys make, resolved and checked as far as settings alone can tell.

    Files that it names are looked for in `folders`, then here.
    """
    flat = dict(keys)
    flat["run.name"] = plain_name(name)
    flat["run.out"] = str(Path(out or str(flat.get("run.out", "runs"))).expanduser().resolve())
    if isinstance(data := flat.get("task.data-dir"), str) and data:
        flat["task.data-dir"] = _found(data, folders)
        folders = [Path(flat["task.data-dir"]), *folders]
    typed = {key: value for key in PATHS if isinstance(value := flat.get(key), str) and value}
    flat |= {key: _from_root(key, value, folders) for key, value in typed.items()}
    if workers is not None:
        flat["runtime.workers"] = workers
    if not flat.get("runtime.workers"):
        flat["runtime.workers"] = cores()
    from thistle.attacks.checks import check_attack, resolve_attack
    from thistle.attacks.defence import check_defence
    from thistle.client.terms import check_training
    from thistle.strategies.build import resolve

    experiment = resolve_attack(resolve(Experiment.of(flat), deployed))
    check_training(experiment.client)
    check_attack(experiment.attack, experiment.task.clients, experiment.rounds)
    check_defence(experiment)
    check_evaluation(experiment.evaluate)
    _check_who_attacks(flat)
    if deployed and experiment.run.until:
        raise UserError(f"run.until = {experiment.run.until}: only simulations pause; leave it out")
    return experiment


def code_folders(path: Path) -> list[Path]:
    """Where modules of the user's are looked for: beside the file, in the run folder that it is in, and here."""
    beside = [] if path.parent == PRESETS else [path.parent, RunFolder(path.parent).code]
    return [*beside, Path.cwd()]


def plain_name(name: Any) -> Any:
    """A run's name is one folder below run.out, nothing that leads elsewhere."""
    if isinstance(name, str) and ("/" in name or name in (".", "..") or not name.isprintable()):
        raise UserError(f"run.name = {name!r}: should be a plain name; the folder around it is --out")
    return name


def _from_root(key: str, value: str, folders: Sequence[Path]) -> str:
    """A path written from the root, because runs are carried out, and resumed, from other folders than this one.

    A file that is in `task.data-dir` may be named from there.
    """
    kind, _, path = value.partition(":")
    if key == "attack.images":
        return _found(value, folders)
    if key == "task.server-font":
        font = _found(value, folders)
        return font if Path(font).is_file() else value
    return f"{kind}:{_found(path, folders)}" if kind in FORMS and path else value


def _found(path: str, folders: Sequence[Path]) -> str:
    """The path in the first of these folders that has it; else in the current one."""
    wanted = Path(path).expanduser()
    return os.path.abspath(next((place / wanted for place in folders if (place / wanted).exists()), wanted))


def claim_folder(experiment: Experiment, exact: bool) -> tuple[Experiment, RunFolder]:
    """A run folder for this run alone; without an exact name a number is appended if needed."""
    for number in range(1, 10_000):
        name = experiment.run.name if number == 1 else f"{experiment.run.name}-{number}"
        path = Path(experiment.run.out) / name
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if exact:
                raise UserError(f"{path} exists: choose another --name, or thistle resume {path}") from None
            continue
        except OSError as error:
            raise UserError(f"run.out: cannot make {path}: {error.strerror}") from None
        named = experiment.model_copy(update={"run": experiment.run.model_copy(update={"name": name})})
        return named, RunFolder(path)
    raise UserError(f"run.out: {experiment.run.out} holds too many runs called {experiment.run.name}")
