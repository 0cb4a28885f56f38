"""What the documents say is compared with what the code does."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.federations import rounds, run, tiny
from thistle.attacks.roles import node_keys
from thistle.client.terms import NODE_KEYS as CALIBRATED
from thistle.experiments.plugins import ROOMS
from thistle.experiments.runfolder import read_json
from thistle.reference import documents
from thistle.reference.parts import PARTS, declared
from thistle.running.prepare import preset_names

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/deploy.md",
    "docs/flower.md",
    "docs/glossary.md",
    "docs/guide.md",
    "docs/index.md",
    "docs/own.md",
    "docs/report.md",
    "docs/run-folder.md",
    "docs/security.md",
    "docs/strategies.md",
    "docs/stress.md",
    "docs/three-hospitals.md",
    "docs/tutorials/first-run.md",
    "docs/tutorials/own-defence.md",
    "docs/tutorials/robust-flower-app.md",
)
EXAMPLES = ("strategy.keep",)
"""Settings that the documents' own examples have."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", documents.DOCUMENTS)
def test_what_is_generated_is_up_to_date(document: str) -> None:
    text = read(document)
    assert documents.PLACE.search(text), f"{document}: nothing in it is generated"
    assert documents.regenerated(text) == text, f"{document} does not say what the code does: run make generate"


def test_every_generated_part_has_its_place() -> None:
    used = [place["name"] for document in documents.DOCUMENTS for place in documents.PLACE.finditer(read(document))]
    assert sorted(used) == sorted(PARTS)


def field_names(value: Any) -> set[str]:
    """The keys of an object and of those in it."""
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(field_names(inner) for inner in value.values()))


@pytest.mark.parametrize(
    "strategy",
    [
        {"strategy.name": "rofsl", "strategy.theta": "auto"},
        {"strategy.name": "dsvd", "strategy.similarity-weights": "auto"},
    ],
    ids=["rofsl", "dsvd"],
)
def test_every_field_of_a_run_folder_is_described(tmp_path: Path, strategy: dict[str, Any]) -> None:
    more = {"attack.fraction": 0.3, "attack.kind": "backdoor", "evaluate.attacks": "fgsm,pgd20"}
    folder = run(tiny(tmp_path, **strategy, **more))
    described = set(re.findall(r"`([^`]+)`", read("docs/run-folder.md")))
    written = {path.name for path in folder.path.iterdir()} - {"checkpoint"}
    assert written <= described
    for path in (folder.summary, folder.status, folder.environment, folder.truth):
        assert field_names(read_json(path)) <= described, path.name
    for line in rounds(folder):
        assert field_names(line) <= described
    assert field_names(json.loads(folder.verdicts.read_text().splitlines()[0])) <= described


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", read(document)):
        file, _, anchor = target.partition("#")
        if target.startswith("http"):
            continue
        path = (ROOT / document).parent / file if file else ROOT / document
        assert path.is_file(), target
        if path.suffix == ".png":
            continue
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        places = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in places, target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_name_things_that_exist(document: str) -> None:
    text = read(document)
    for key in re.findall(r"--set ([a-z.-]+)=", text):
        assert key in {*declared(), *node_keys(), *CALIBRATED, *EXAMPLES}
    for name in re.findall(r"thistle run ([a-z0-9-]+)(?=\s|`)", text):
        assert name in preset_names()
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:^ +|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_the_first_make_says_what_it_installs_and_how_long_that_takes(tmp_path: Path) -> None:
    command = ["make", "-n", "demo", f"VENV={tmp_path}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"echo .Installing .* \(2 GB\): one to three minutes, once", said)
    assert said.index("Installing") < said.index("pip install") < said.index("thistle demo")
    assert "2 GB" in read("README.md") and "one to three minutes" in read("README.md")


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/papers.md"])
def test_files_that_are_named_exist(document: str) -> None:
    """As `room/file.py`; what follows one, as `Class.method` or `function`, is in it."""
    room = "|".join(ROOMS)
    for path, names in re.findall(rf"`((?:{room})/[\w/-]+\.py)`((?:,? `[\w.]+`)*)", read(document)):
        assert (ROOT / path).is_file(), path
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([A-Za-z_]\w*)[\w.]*`", names):
            assert re.search(rf"\b{name}\b", source), f"{name} in {path}"
