"""The documents as a site: every page is built, every link leads somewhere, and nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from thistle.experiments.plugins import ROOMS
from thistle.reference.methods import attack_pages, strategy_pages

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?:[^"]*)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it; a link or anchor that leads nowhere is an error there."""
    types, built = tmp_path_factory.mktemp("types"), tmp_path_factory.mktemp("site")
    (types / "thistle").mkdir()
    parts = [*(ROOT / "thistle").iterdir(), *(ROOT / room for room in ROOMS if room != "thistle")]
    for part in parts:
        (types / "thistle" / part.name).symlink_to(part)
    environment = {**os.environ, "TYPES": str(types), "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(built)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return built


def test_every_strategy_and_every_attack_has_its_page(site: Path) -> None:
    for folder, pages in (("strategies", strategy_pages()), ("attacks", attack_pages())):
        assert {path.stem for path in (site / "methods" / folder).iterdir()} == set(pages)
        assert len(pages) > 25


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    assert {path: found for path in pages if (found := OUTSIDE.findall(path.read_text(encoding="utf-8")))} == {}
    helper = re.findall(r'src="([^"]*search-from-disk.js)"', (site / "methods" / "attacks" / "dba.html").read_text())
    assert helper and ((site / "methods" / "attacks") / helper[0]).resolve().is_file()


def test_the_reference_says_what_the_code_says(site: Path) -> None:
    page = (site / "api" / "runs.html").read_text(encoding="utf-8")
    assert "the path of a .toml file" in page and "After KeyboardInterrupt the run is resumable" in page


def test_a_page_has_formula_paper_settings_and_an_example() -> None:
    page = attack_pages()["min-max"]
    for part in ("max_i ‖v − u_i‖", "Shejwalkar", "`attack.perturbation`", "--set attack.kind=min-max", "colluders"):
        assert part in page
    page = strategy_pages()["krum"]
    for part in ("n - f - 2 nearest", "Blanchard", "`strategy.malicious`", "strategy.name=krum", "import Krum"):
        assert part in page
