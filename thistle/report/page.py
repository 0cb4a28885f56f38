"""The page: our own script and Bokeh's, with the data in the same file or read live.

Bokeh was chosen by measurement: its script is 1.4 MB and a map of a million cells stands after a second; plotly's
4.8 MB took three. Both come from the installed package, so the repository holds no one else's script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader

from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import write_atomically
from thistle.report.clients import Truth, VerdictLog, client_map
from thistle.report.reading import inside, read_run, run_id
from thistle.report.sources import runs_below, titles
from thistle.report.sweeps import as_page, read_sweep

ASSETS = Path(__file__).resolve().parent / "assets"
SCRIPTS = ("base.js", "charts.js", "runs.js", "quality.js", "clients.js", "sweeps.js", "page.js")
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'"
)


@cache
def bokeh_script() -> str:
    """Bokeh's own script, as its package ships it."""
    import bokeh

    folder = Path(bokeh.__file__).parent / "server" / "static" / "js"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js"))


def page_script() -> str:
    return "\n".join(["'use strict';", *((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)])


def report_data(runs: list[Path], sweeps: list[Path], reports: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything that the page shows of these folders; `reports`: see `as_page`."""
    read = [read_run(folder, name) for folder, name in zip(runs, titles(runs), strict=True)]
    return {
        "runs": [asdict(run) for run in read],
        "maps": {run.id: run_map(folder) for run, folder in zip(read, runs, strict=True)},
        "sweeps": [as_page(read_sweep(folder), reports) for folder in sweeps],
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def run_map(folder: Path) -> dict[str, Any]:
    """The map of a run's clients, read from nothing."""
    log = VerdictLog(folder)
    log.update()
    return client_map(log, Truth.read(folder))


def file_page(data: dict[str, Any], title: str) -> str:
    """A self-contained page: its policy forbids the browser to fetch anything."""
    scripts = (bokeh_script(), page_script())
    policy = POLICY.format(scripts=" ".join(_hash(script) for script in scripts), connect="'none'")
    return _render(title=title, policy=policy, scripts=scripts, data=_embed(data), live=False)


def live_page(title: str) -> str:
    """A page that asks the server which sent it."""
    return _render(title=title, policy="", scripts=(), data="", live=True)


def _render(**values: Any) -> str:
    environment = Environment(loader=FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(style=style, **values)


def _embed(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def write_page(runs: list[Path], sweeps: list[Path], target: Path | None = None, cells: bool = False) -> Path:
    """The page of these folders as a file; default: report.html, in the folder if it is only one.

    `cells`: every finished run of a sweep gets a page of its own in its folder, to which the sweep's page leads.
    """
    alone = (runs + sweeps)[0] if len(runs + sweeps) == 1 else None
    target = target or (alone or Path()) / "report.html"
    inner = [cell for sweep in sweeps for cell in runs_below(sweep) if inside(cell, "summary.json")] if cells else []
    reports = {run_id(cell): _address(write_page([cell], []), target.parent) for cell in inner}
    title = f"Thistle: {alone.name}" if alone else f"Thistle: {len(runs) + len(sweeps)} experiments"
    page = file_page(report_data(runs, sweeps, reports), title)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, page.encode())
    except OSError as error:
        raise UserError(f"--output {target}: cannot be written: {error.strerror}") from None
    return target


def _address(page: Path, folder: Path) -> str:
    """Where a page in `folder` finds that page."""
    return quote(os.path.relpath(page.resolve(), folder.resolve()))
