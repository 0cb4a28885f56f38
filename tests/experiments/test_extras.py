"""The base install is enough for what it promises; for the rest, the user is told which extra to install."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from thistle.experiments.errors import UserError
from thistle.experiments.extras import EXTRAS, explain, require

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITHOUT = "import sys; sys.modules |= dict.fromkeys({modules!r})\n{then}"
COMMAND = "sys.argv[1:] = {arguments!r}\nfrom thistle.cli import main; main()"
IMPORTS = """
import thistle, thistle.strategies, thistle.strategies.build, thistle.strategies.aggregators, thistle.protocol
import thistle.client.app, thistle.server.app, thistle.attacks.poisoning, thistle.attacks.evasion.measure
import thistle.tasks.task, thistle.results.trained, thistle.engines.inline, thistle.cli
"""


EXPERIMENT = """
rounds = 1
task = { name = "npz:mine.npz", clients = 4, client-size = 20 }
client = { per-round = 2 }
"""


def plain(requirement: str) -> str:
    """The name of a requirement, in one spelling."""
    return canonicalize_name(Requirement(requirement).name)


@cache
def distributions() -> Mapping[str, list[str]]:
    """Which packages hold a module; it takes seconds to find out."""
    return packages_distributions()


def only_in_extras() -> list[str]:
    """Modules that a base install lacks; Flower itself brings some of the others."""
    brought = {plain(line) for line in requires("flwr") or [] if "extra ==" not in line}
    found = distributions()
    return [name for name in EXTRAS if not brought & {plain(package) for package in found.get(name, [])}]


def without(modules: list[str], then: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python code in a process in which these modules cannot be imported."""
    command = [sys.executable, "-c", WITHOUT.format(modules=modules, then=then)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_every_module_is_in_the_extra_that_the_hint_names() -> None:
    found = distributions()
    for module, extra in EXTRAS.items():
        declared = {plain(line) for line in PROJECT["optional-dependencies"][extra]}
        assert {plain(package) for package in found.get(module, [module])} <= declared, module


def test_everything_is_in_all_and_bounded_from_below() -> None:
    extras = PROJECT["optional-dependencies"]
    assert (
        extras["all"] == ["thistle-fl[simulation,deploy,report,vision]"]
        and extras["dev"][0] == "thistle-fl[all,docs,dp]"
    )
    lines = [
        *PROJECT["dependencies"],
        *(line for name in ("simulation", "deploy", "report", "vision") for line in extras[name]),
    ]
    assert all(re.fullmatch(r"[a-z0-9-]+(\[simulation\])?>=[\d.]+", line) for line in lines)
    assert PROJECT["requires-python"] == ">=3.11"
    assert runpy.run_path(str(ROOT / "docker" / "needed.py"))["needed"](ROOT / "pyproject.toml") == lines


def test_the_tested_versions_are_within_the_bounds() -> None:
    pinned = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    tested = {plain(name): version for name, version in pinned}
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]:
        needed = Requirement(line)
        assert needed.name == "thistle-fl" or tested[plain(line)] in needed.specifier, line


def test_the_base_is_enough_to_import_everything_and_to_train_on_the_users_own_data(tmp_path: Path) -> None:
    lacking = only_in_extras()
    assert {"ray", "bokeh", "matplotlib", "sklearn", "torchvision", "scipy", "psutil"} <= set(lacking)
    draw = np.random.default_rng(0)
    pixels, labels = draw.integers(0, 255, (80, 8, 8), np.uint8), np.arange(80) % 4
    np.savez(tmp_path / "mine.npz", x_train=pixels, y_train=labels, x_test=pixels[:20], y_test=labels[:20])
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    command = COMMAND.format(arguments=["run", "mine.toml", "--engine", "inline", "--out", str(tmp_path / "runs")])
    done = without(lacking, IMPORTS + command, tmp_path)
    assert done.returncode == 0 and "last accuracy" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("ray", "simulation", ["run", "digits-clean"]),
        ("sklearn", "vision", ["run", "digits-clean", "--engine", "inline"]),
        ("jinja2", "report", ["report", "runs"]),
    ],
)
def test_a_command_whose_extra_is_missing_says_so_in_one_line(
    module: str, extra: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THISTLE_CACHE", str(tmp_path / "cache"))
    done = without([module], COMMAND.format(arguments=arguments), tmp_path)
    assert done.returncode == 2, done.stderr
    hint = f"{module} is not installed, and this needs it: pip install 'thistle-fl[{extra}]'"
    assert hint in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


def test_a_module_of_nobodys_is_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain(ModuleNotFoundError("no", name="nowhere_at_all")) is None
    assert "thistle-fl[report]" in str(explain(ModuleNotFoundError("no", name="scipy.stats")))
    monkeypatch.setitem(sys.modules, "bokeh", None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="bokeh is not installed"):
        require("torch", "bokeh")
