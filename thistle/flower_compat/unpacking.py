"""Flower's programs that unpack an app, made to unpack it whole or not at all.

Flower makes the app's folder first and then copies the files into it, and a process that finds the folder assumes
that it is complete. If two processes with one home start some milliseconds apart, the second runs an incomplete app;
after a process that was killed halfway, every later one does. Here an app is unpacked elsewhere, and renamed: the
folder is there with all its files, or it is not there.

Flower's superexecs start these programs by name, so that small programs of the same names, first on their PATH, are
what they find. tests/flower_compat/test_unpacking.py notices an upgrade.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shlex
import sys
import tempfile
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

PROGRAMS = ("flwr-serverapp", "flwr-clientapp", "flwr-simulation")
WARM = "flwr-clientapp"
"""Where there is a fork server, it gives the process; the ordinary program lies one folder further down."""
SCRIPT = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
from runpy import run_path

run_path({file!r})["become"]({program!r})
"""
"""Python to Python, a call of Python to the shell: a #! line must not be long, and knows no spaces.

This file is run by its path: `thistle` itself must come from the app that is unpacked, not from what is installed.
"""
LAUNCHER = """\
#!/bin/sh
'''exec' {python} -I -S "$0" "$@"
' '''
exec(compile(open({file!r}, encoding="utf-8").read(), {file!r}, "exec"))
"""


def programs(home: Path) -> Path:
    """The folder with the programs, in Flower's home; made when it is first needed."""
    folder, python = home / "bin", shlex.quote(sys.executable)
    for program in PROGRAMS:
        where = folder / "cold" if program == WARM else folder
        _write(where / program, SCRIPT.format(python=python, file=__file__, program=program))
    launcher = Path(__file__).with_name("warm_launch.py")
    _write(folder / WARM, LAUNCHER.format(python=python, file=str(launcher)))
    return folder


def _write(path: Path, script: str) -> None:
    """If it is not there yet. A process that starts it meanwhile gets the old one or the new one."""
    if path.is_file() and path.read_text(encoding="utf-8") == script:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)


def become(program: str) -> None:
    """Be that program of Flower's, in this process."""
    unpack_whole()
    if program == WARM:
        unpack_once()
    (found,) = entry_points(group="console_scripts", name=program)
    sys.exit(found.load()())


def unpack_whole() -> None:
    """From now on, in this process."""
    from flwr.cli import install
    from flwr.cli.config_utils import load_and_validate
    from flwr.common.config import get_metadata_from_config, get_project_dir

    theirs = install.validate_and_install

    def ours(
        project_dir: Path, fab_hash: str, fab_name: str | None, install_dir: Path | None, skip_prompt: bool = False
    ) -> Path:
        config, _ = load_and_validate(project_dir / "pyproject.toml", check_module=False)
        target = get_project_dir(*get_metadata_from_config(config), fab_hash)
        if install_dir is not None or target.exists():
            return theirs(project_dir, fab_hash, fab_name, install_dir, skip_prompt)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as scratch:
            made = theirs(project_dir, fab_hash, fab_name, Path(scratch), skip_prompt)
            _move(made, target)
        return target

    install.validate_and_install = ours


def unpack_once() -> None:
    """From now on, in this process: Flower's ClientApp unpacks its app for every message, to find that it is there."""
    from flwr.common.config import get_metadata_from_config, get_project_dir
    from flwr.supernode.runtime import run_clientapp as module

    run_clientapp: Any = module
    theirs = run_clientapp.install_from_fab

    def ours(fab: bytes, *, skip_prompt: bool) -> Path:
        with zipfile.ZipFile(io.BytesIO(fab)) as bundle:
            config = tomllib.loads(bundle.read("pyproject.toml").decode())
        there = get_project_dir(*get_metadata_from_config(config), hashlib.sha256(fab).hexdigest())
        return there if there.exists() else theirs(fab, skip_prompt=skip_prompt)

    run_clientapp.install_from_fab = ours


def _move(made: Path, target: Path) -> None:
    """Where another process was faster, its copy is as good."""
    try:
        made.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
