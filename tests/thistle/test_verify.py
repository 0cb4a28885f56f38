"""`thistle verify` and `thistle leaderboard`: claims that hold, claims that do not, and claims from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.federations import TINY, run, tiny
from thistle.attacks.stress.suite import Candidate
from thistle.cli import app
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import RunFolder, read_json, write_json
from thistle.leaderboard.entries import make_entry, read_entries, read_entry, write_entry
from thistle.leaderboard.page import make_page
from thistle.running.launch import Engine
from thistle.worst_case.question import ask
from thistle.worst_case.search import Search

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
KEYS = {key: value for key, value in TINY.items() if key != "runtime.workers"}
CANDIDATES = [Candidate("sign-flip", "standard", (("attack.strength", 5.0),)), Candidate("zero", "standard")]


def cli(*words: object) -> tuple[int, str, str]:
    """Exit code, and one line of text; an error's text where there is one."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(found.exception, UserError):
        return 2, "", str(found.exception)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, " ".join(found.stdout.split()), found.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tiny(tmp_path_factory.mktemp("runs"), "mine", rounds=2)).path


@pytest.fixture
def claimed(finished: Path, tmp_path: Path) -> Path:
    """What is kept of a run: three files."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("experiment.toml", "summary.json", "environment.json"):
        shutil.copy(finished / name, kept)
    return kept


def change(path: Path, **values: Any) -> None:
    write_json(path, {**read_json(path), **values})


def test_a_run_and_what_is_kept_of_it_are_the_same_to_the_bit(finished: Path, claimed: Path, tmp_path: Path) -> None:
    sha = read_json(finished / "summary.json")["model_sha256"]
    code, said, _ = cli("verify", "mine", "--out", finished.parent, "--keep", tmp_path / "again")
    assert code == 0 and f"mine: same model to the bit ({sha[:16]})" in said
    assert read_json(tmp_path / "again" / "again" / "summary.json")["model_sha256"] == sha
    code, said, _ = cli("verify", claimed / "summary.json", "--quiet")
    assert code == 0 and sha[:16] in said


def test_another_model_in_the_same_environment_is_no_proof(claimed: Path) -> None:
    accuracy = read_json(claimed / "summary.json")["final_accuracy"]
    change(claimed / "summary.json", model_sha256="0" * 64, final_accuracy=accuracy - 0.1)
    code, said, _ = cli("verify", claimed, "-q")
    assert code == 1 and "NOT as claimed: another model, in the same environment" in said and "+10.00 points" in said


def test_another_accuracy_of_the_same_model_is_a_lie(claimed: Path) -> None:
    change(claimed / "summary.json", final_accuracy=0.99)
    code, said, _ = cli("verify", claimed, "-q")
    assert code == 1 and "the same model to the bit, but its accuracy is" in said and "not 99.00 %" in said


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"cpu": "a quantum computer"}, "processor: a quantum computer there"),
        ({"capability": "NO"}, "vector instructions: NO there"),
        ({"app_sha256": "f" * 64}, "Thistle's code: ffffffffffff there"),
        ({"packages": {"torch": "1.0"}}, "torch: 1.0 there"),
        ({"hosts": [{"device": "cuda"}]}, "devices: cuda there, cpu here"),
    ],
)
def test_another_environment_may_explain_another_model(claimed: Path, there: dict[str, Any], words: str) -> None:
    change(claimed / "summary.json", model_sha256="0" * 64)
    change(claimed / "environment.json", **there)
    code, said, _ = cli("verify", claimed, "-q")
    assert code == 3 and words in said and "+0.00 points" in said


def test_a_claim_without_an_environment_is_not_explained(claimed: Path) -> None:
    change(claimed / "summary.json", model_sha256="0" * 64)
    (claimed / "environment.json").unlink()
    code, said, _ = cli("verify", claimed, "-q")
    assert code == 1 and "the claim does not say where it was made" in said


def test_what_cannot_be_verified_is_said_in_one_line(claimed: Path, tmp_path: Path) -> None:
    broken = tmp_path / "entry.json"
    broken.write_text('{"format": 1}')
    for words, message in (
        (("verify", "nowhere"), "nowhere: no folder there"),
        (("verify", claimed, "--cell", "0.3"), "--cell: belongs to an entry of the leaderboard"),
        (("verify", claimed, "--set", "rounds=3"), "--set rounds: would change the experiment"),
        (("verify", broken), f"{broken}: cannot be read as an entry"),
        (("leaderboard", tmp_path), "no stress.json there"),
        (("leaderboard", "--docs", tmp_path), "no entries"),
    ):
        code, _, error = cli(*words)
        assert code == 2 and message in error and "\n" not in error, words
    (claimed / "environment.json").write_text("torn {")
    assert "environment.json: is not a JSON object" in cli("verify", claimed)[2]
    change(claimed / "summary.json", detection=None)
    assert "real nodes trained this run" in cli("verify", claimed)[2]
    (claimed / "summary.json").unlink()
    assert "has no summary.json" in cli("verify", claimed)[2]


# ---- the leaderboard -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over two attacks, with two seeds."""
    home = tmp_path_factory.mktemp("stress")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thistle.worst_case.search.candidates", lambda suite: CANDIDATES)
        patch.setattr("thistle.worst_case.search.variations", lambda candidate, rounds: [])
        question = ask("digits-clean", KEYS, fractions="0.5", suite="standard", seeds=2, budget=None, name="fedavg")
        found = Search(question, home / "fedavg", Engine.INLINE, 1, quiet=True).run()
    assert not found.failed
    return home


def test_a_search_becomes_an_entry_a_page_and_a_report(stressed: Path, tmp_path: Path) -> None:
    docs, html = tmp_path / "docs", tmp_path / "board.html"
    code, said, _ = cli("leaderboard", stressed, "--docs", docs, "--html", html)
    (path, entry), *others = read_entries(docs / "leaderboard").items()
    assert code == 0 and not others and f"page: {docs / 'leaderboard.md'} (1 defences)" in said
    worst = read_json(stressed / "fedavg" / "stress.json")["results"][0]
    page = (docs / "leaderboard.md").read_text()
    number = f"{100 * worst['accuracy']:.1f} ± {100 * worst['accuracy_error']:.1f} {worst['attack']}"
    assert number in page and entry["worst"] == {"0.5": f"0.5/{worst['attack']}"}
    assert f"thistle verify docs/leaderboard/{path.name} --cell 0.5/{worst['attack']}" in page
    assert {cell["attack"] for cell in entry["cells"]} == {"none", "sign-flip", "zero"}
    assert all(cell["attack"] in page for cell in entry["cells"] if cell["fraction"])
    assert str(tmp_path) not in path.read_text() and str(stressed) not in path.read_text()
    data = html.read_text()
    assert "leaderboard: digits" in data and f'"{worst["attack"]}"' in data


def test_any_cell_of_an_entry_can_be_verified(stressed: Path, tmp_path: Path) -> None:
    path = write_entry(make_entry(stressed / "fedavg"), tmp_path)
    entry = read_entry(path)
    code, said, _ = cli("verify", path, "--cell", "0.5", "-q")
    assert code == 0 and "seed 1: same model to the bit" in said and "2 of 2 are identical" in said
    lied = next(cell for cell in entry["cells"] if cell["cell"] == "none")
    lied["runs"][0]["final_accuracy"] = 0.999
    lying = tmp_path / "lying.json"
    lying.write_text(json.dumps(entry))
    assert cli("verify", lying, "--cell", "none", "--seed", "0", "-q")[0] == 1
    assert "has none, 0.5" in re.sub(r"has 0.5, none, ", "has none, ", cli("verify", path, "--cell", "0.7")[2])
    assert "has no such run" in cli("verify", path, "--seed", "9")[2]


def test_defences_are_ranked_by_their_worst_case(stressed: Path, tmp_path: Path) -> None:
    entry = make_entry(stressed / "fedavg")
    better = json.loads(json.dumps(entry)) | {"defence": "better"}
    for cell in better["cells"]:
        cell["accuracy"] = 0.9
    write_entry(entry, tmp_path)
    write_entry(better, tmp_path)
    page = make_page(read_entries(tmp_path), tmp_path)
    assert page.index("| better |") < page.index("| fedavg |") and "| attack | better | fedavg |" in page


def test_an_entry_is_not_overwritten_by_another_experiment(stressed: Path, tmp_path: Path) -> None:
    entry = make_entry(stressed / "fedavg")
    write_entry(entry, tmp_path)
    write_entry(entry, tmp_path)
    with pytest.raises(UserError, match="is of another experiment; give this one a name with --as"):
        write_entry({**entry, "experiment": {**entry["experiment"], "strategy.weighted": False}}, tmp_path)


def test_a_search_that_has_not_ended_is_no_entry(stressed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stressed / "fedavg", copy)
    change(copy / "stress.json", failed={"x": "y"})
    with pytest.raises(UserError, match="1 runs failed"):
        make_entry(copy)
    document = read_json(copy / "stress.json")
    del document["results"]
    write_json(copy / "stress.json", document)
    with pytest.raises(UserError, match="has not ended"):
        make_entry(copy)


def test_the_page_in_the_documents_is_that_of_the_entries() -> None:
    """Who adds an entry makes the page anew: `thistle leaderboard`."""
    entries = read_entries(ROOT / "docs" / "leaderboard")
    page = ROOT / "docs" / "leaderboard.md"
    assert page.is_file() == bool(entries)
    if entries:
        assert page.read_text(encoding="utf-8") == make_page(entries, ROOT)


def test_a_cell_is_the_run_it_was_made_of(stressed: Path) -> None:
    """Its few lines hold the whole experiment."""
    for cell in make_entry(stressed / "fedavg")["cells"]:
        for one in cell["runs"]:
            assert any(
                RunFolder(path.parent).load_experiment().seed == one["seed"]
                for path in (stressed / "fedavg").glob("*/summary.json")
                if read_json(path)["model_sha256"] == one["model_sha256"]
            )
