"""The notebooks run from top to bottom and show what they are stored with; their links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from thistle.reference.notebooks import notebook_page

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NAMES = ("compare-defences", pytest.param("robust-flower-app", marks=pytest.mark.ray))
FEWER = {'"rounds": 20': '"rounds": 5', "num_rounds=6": "num_rounds=2"}
"""So that the tests take seconds."""


def shown(cell: Any) -> set[str]:
    """The kinds of output that a cell has, without the messages that Thistle prints on the way."""
    found = set()
    for output in cell.get("outputs", []):
        kinds = set(output.get("data", {"printed": ""}))
        found |= set() if output["output_type"] == "display_data" and kinds == {"text/html", "text/plain"} else kinds
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_what_is_stored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    stored = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    again = nbformat.from_dict(json.loads(json.dumps(stored)))
    changed = 0
    for cell in again.cells:
        for many, few in FEWER.items():
            changed += many in cell.source
            cell.source = cell.source.replace(many, few)
    assert changed
    NotebookClient(again, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(stored.cells, again.cells, strict=True):
        assert shown(before) == shown(after), before.source


@pytest.mark.parametrize("name", ["compare-defences", "robust-flower-app"])
def test_it_was_stored_after_one_run_from_the_top(name: str) -> None:
    cells = [cell for cell in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("name", ["compare-defences", "robust-flower-app"])
def test_links_lead_somewhere(name: str) -> None:
    text = "\n".join(cell.source for cell in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells)
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links and all((FOLDER / link).is_file() for link in links), links


def test_the_page_has_text_code_outputs_and_pictures() -> None:
    page = notebook_page(FOLDER / "compare-defences.ipynb")
    assert page.startswith("# Compare defences\n\n[Download this page as a notebook](compare-defences.ipynb)")
    assert "```python\nimport thistle\n" in page
    assert "```text\nWriting mine.py\n```" in page
    assert "![output](data:image/png;base64," in page
    assert re.search(r"\| ipm \|", page), "the table of the sweep"
    assert "\n# " not in re.sub(r"```.*?```", "", page, flags=re.DOTALL)[2:], "one title"
