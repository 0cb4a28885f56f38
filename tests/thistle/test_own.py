"""Models, tasks, attacks and strategies of the user's own: the guide's examples, end to end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import get_fused_config_from_dir

from tests.federations import TINY, model_sha, rounds, run
from tests.thistle.test_cli import complaint, thistle
from thistle.commands.evaluate import Terms, measure
from thistle.engines.ray import RayProcess
from thistle.engines.staging import stage_app, stage_code
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import is_own, load_own, make_own, parse_own, pin
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.protocol.layout import Layout
from thistle.results.trained import find_subject
from thistle.running.launch import Engine, Launch
from thistle.running.prepare import claim_folder, make_experiment
from thistle.strategies.build import make_strategy, resolve
from thistle.strategies.pipeline import Pipeline
from thistle.tasks.models import build_model
from thistle.tasks.task import prepare_task
from thistle.terminal.progress import RunProgress

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "own.md"
EXAMPLES = "\n".join(re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with the guide's mine.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(EXAMPLES)
    return tmp_path


def mine(name: str = "run", **more: Any) -> Experiment:
    """As `thistle run` makes it, and checks it."""
    keys = {**TINY, "run.name": name, **more}
    experiment = make_experiment("digits-clean", [f"{key}={value}" for key, value in keys.items()])
    Launch(Engine.INLINE, quiet=True).check(experiment)
    return experiment


def names(folder: RunFolder) -> str:
    return folder.experiment.read_text()


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"model.name": "mine:small_cnn"}, 0.7),
        ({"task.name": "mine:even_or_odd", "task.server-data": "none"}, 0.7),
        ({"attack.kind": "mine:only_the_head", "attack.fraction": 0.3}, 0.12),
        ({"attack.kind": "mine:mirror_labels", "attack.fraction": 0.3}, 0.12),
        ({"attack.kind": "mine:away_from_all", "attack.fraction": 0.3}, 0.12),
        ({"strategy.name": "mine:short_ones", "strategy.filter": "angle", "strategy.tau": 1.0}, 0.5),
        ({"strategy.name": "mine:NearMedian", "strategy.keep": 0.7}, 0.5),
        ({"strategy.name": "mine:cautious"}, 0.5),
    ],
    ids=lambda value: next(iter(value.values())).partition(":")[2] if isinstance(value, dict) else "",
)
def test_the_guides_examples_run(here: Path, settings: dict[str, Any], least: float) -> None:
    settings = {"client.lr": 0.5, "client.batch-size": 10, "task.partition": "iid", **settings}
    folder = run(mine(**settings))
    assert max(line.get("accuracy", 0) for line in rounds(folder)) > least
    assert not any("kept" in line or line["failed"] for line in rounds(folder))
    assert (folder.code / "mine.py").read_text() == EXAMPLES
    assert [path.name for path in folder.code.iterdir()] == ["mine.py"]
    again = run(mine("again", **settings))
    assert model_sha(again) == model_sha(folder)


def test_own_attackers_and_own_verdicts_are_on_record(here: Path) -> None:
    own = {"attack.kind": "mine:away_from_all", "attack.strength": 9.0, "attack.fraction": 0.25}
    folder = run(mine(**own, **{"strategy.name": "mine:short_ones", "client.per-round": 12}))
    truth = read_json(folder.truth)
    assert truth["kind"].startswith("mine:away_from_all@") and len(truth["malicious"]) == 3
    dropped = {line["client"] for line in read_lines(folder.verdicts) if line["step"] == "short-ones"}
    assert dropped == set(truth["malicious"])
    assert read_json(folder.summary)["detection"]["filter"]["recall"] == 1
    assert all(line["length.usual"] > 0 for line in rounds(folder))


def test_own_steps_go_where_the_aggregator_would(here: Path) -> None:
    settings = {"strategy.name": "mine:short_ones", "strategy.filter": "loss", "strategy.tau": 1.0}
    experiment = mine(**settings)
    task = prepare_task(experiment.task, 0, True)
    layout = Layout.of(build_model(experiment.network, task.shape, task.classes, 0))
    strategy = make_strategy(experiment, task, layout)
    assert isinstance(strategy, Pipeline)
    assert [getattr(step, "__name__", type(step).__name__) for step in strategy.plan] == [
        "LossFilter",
        "drop_long",
        "Aggregation",
        "Clip",
    ]


def test_a_setting_of_an_own_rule_is_a_setting_like_any_other(here: Path) -> None:
    file = here / "my.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in TINY.items()]
    file.write_text("\n".join([*lines, 'strategy.name = "mine:NearMedian"', "strategy.keep = 0.25"]))
    first = run(make_experiment(str(file), [], name="first"))
    assert "keep = 0.25" in names(first)
    assert any(line["step"] == "NearMedian" for line in read_lines(first.verdicts))
    second = run(make_experiment(str(file), ["strategy.keep=0.75"], name="second"))
    assert "keep = 0.75" in names(second) and model_sha(second) != model_sha(first)
    repeated = run(make_experiment(str(second.experiment), [], name="repeated"))
    assert model_sha(repeated) == model_sha(second)


def test_flower_accepts_the_settings_of_own_rules_of_several_experiments(here: Path) -> None:
    (here / "yours.py").write_text(EXAMPLES.replace("keep", "inner_part"))
    app = stage_app(here / "app")
    others = [
        mine("a", **{"strategy.name": "mine:NearMedian", "strategy.keep": 0.25}),
        mine("b", **{"strategy.name": "yours:NearMedian", "strategy.inner-part": 0.75}),
        mine("c", **{"strategy.name": "rofsl"}),
    ]
    for experiment in others:
        stage_code(app, experiment)
        stage_code(app, experiment)
    for experiment in others:
        assert Experiment.of(get_fused_config_from_dir(app, experiment.flat())) == experiment


OWN = {
    "model.name": "mine:small_cnn",
    "strategy.name": "mine:cautious",
    "attack.kind": "mine:only_the_head",
    "attack.fraction": 0.25,
}


def test_a_run_is_resumed_after_the_original_was_deleted(here: Path) -> None:
    whole = run(mine("whole", **OWN))
    half = run(mine("half", **OWN, **{"rounds": 2}))
    (here / "mine.py").unlink()
    shutil.rmtree(here / "__pycache__", ignore_errors=True)
    half.experiment.write_text(half.experiment.read_text().replace("rounds = 2", "rounds = 4"))
    half.set_status("stopped")
    done = thistle("resume", "half", "--engine", "inline", cwd=here)
    assert done.returncode == 0, done.stderr
    assert len(rounds(half)) == 4 and model_sha(half) == model_sha(whole)
    assert measure(find_subject("half", "runs", ""), Terms(["natural"], 20, 0.1, None)).document["samples"] == 20


def test_a_run_can_be_repeated_from_its_folder_after_an_edit(here: Path) -> None:
    first = run(mine("first", **OWN))
    (here / "mine.py").write_text(EXAMPLES.replace("16", "8"))
    repeated = run(make_experiment(str(first.experiment), [], name="repeated"))
    assert model_sha(repeated) == model_sha(first) and names(repeated).count("@") == 3
    edited = run(mine("edited", **OWN))
    assert model_sha(edited) != model_sha(first)
    with pytest.raises(UserError, match=r"no mine\.py with this content in .*; for the file as it is now write mine:"):
        pin({"model.name": f"mine:small_cnn@{'0' * 16}"}, [here])


@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", [{}, {"strategy.name": "mine:NearMedian", "strategy.keep": 0.7}], ids=["", "rule"])
def test_own_code_travels_with_the_app(here: Path, strategy: dict[str, Any]) -> None:
    everything = {**OWN, **strategy, "task.name": "mine:even_or_odd", "task.server-data": "none"}
    inline = run(mine("inline", **everything))
    file = here / "elsewhere" / "my.toml"
    file.parent.mkdir()
    keys = {**TINY, **everything}
    file.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()))
    (here / "mine.py").rename(file.with_name("mine.py"))
    experiment, folder = claim_folder(make_experiment(str(file), []), exact=True)
    with RayProcess(experiment.runtime) as process, RunProgress(folder, experiment.rounds, quiet=True) as progress:
        process.carry_out(experiment, folder, progress)
    assert model_sha(folder) == model_sha(inline)
    assert (folder.code / "mine.py").read_text() == EXAMPLES


def test_an_installed_module_needs_no_file(tmp_path: Path) -> None:
    experiment = pin({"model.name": "torchvision.models:resnet18"}, [tmp_path])
    assert experiment["model.name"] == "torchvision.models:resnet18"
    assert not is_own("folder:/x") and not is_own("npz:x") and not is_own("digits")
    assert parse_own("a.b:c", "model.name").digits == ""


def test_two_contents_of_one_name_live_side_by_side(tmp_path: Path) -> None:
    """And a file is compiled as its own lines say: annotations are values unless it says otherwise."""
    made = []
    for number in (1, 2):
        (tmp_path / "twin.py").write_text(f"class Made:\n    number: int = {number}\n")
        name = pin({"model.name": "twin:Made"}, [tmp_path])["model.name"]
        made += [make_own(name, "model.name"), load_own(name, "model.name")()]
    assert [one.number for one in made] == [1, 1, 2, 2]
    assert made[0].__annotations__ == {"number": int} and type(made[0]) is type(made[1])


WRONG = """
import torch
from torch import nn

number = 3

def fails(*arguments):
    return 1 / 0

def nothing(*arguments):
    return None

def wide(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes + 1))

def blind(shape, classes):
    return nn.Linear(3, classes)

def frozen(shape, classes):
    return nn.Flatten()

def tied(shape, classes):
    layer = nn.Linear(classes, classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), layer, layer)

def halves():
    return {"x_train": torch.zeros(4, 8, 8), "y_train": [0, 1, 0, 1], "x_test": [1, 2]}

def forgetful(experiment, layout):
    return lambda round, progress: None

def too_short(attack, facts):
    return lambda update, generator: update[:-1]

def slips(attack, facts):
    return lambda update, generator: update + torch.ones(3)

def one_less(attack, facts):
    from thistle.attacks.poisoning.build import Poison
    return Poison(data=lambda pixels, labels: (pixels, labels[1:]))

def panel_back(attack, facts):
    from thistle.attacks.poisoning.build import Poison
    return Poison(collusion=lambda panel: panel)

def no_model(experiment, layout):
    from dataclasses import replace
    return lambda round, progress: replace(progress, step=progress.step * float("nan"))
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model.name": "mine:"}, "model.name = 'mine:': should be module:factory"),
        (
            {"task.name": "fodler:/data"},
            "as mine:make for the function make in mine.py (or folder:PATH, npz:PATH, csv:PATH, parquet:PATH)",
        ),
        ({"model.name": "my-model:net"}, "should be module:factory"),
        ({"model.name": "thistle.server:net"}, "thistle.server is one of Thistle's modules; rename yours"),
        ({"model.name": "nothere:net"}, "no file nothere.py beside the experiment, and no installed module nothere"),
        ({"model.name": "no.where:net"}, "there is no installed module no.where"),
        ({"strategy.name": "broken:net"}, "cannot be imported: SyntaxError"),
        (
            {"strategy.name": "raising:net"},
            "cannot be imported: NameError: name 'undefined' is not defined (raising.py, ",
        ),
        (
            {"strategy.name": "importing:net"},
            "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'",
        ),
        ({"model.name": "wrong:net"}, "wrong has no net"),
        ({"attack.kind": "wrong:number"}, "number is a int, not a function"),
        ({"model.name": "wrong:fails"}, "failed: ZeroDivisionError: division by zero (wrong.py, line 8)"),
        ({"task.name": "wrong:fails"}, "task.name = 'wrong:fails@"),
        ({"strategy.name": "wrong:fails"}, "failed: ZeroDivisionError"),
        ({"attack.kind": "wrong:fails"}, "failed: ZeroDivisionError"),
        ({"model.name": "wrong:nothing"}, "should make a torch.nn.Module, not NoneType"),
        ({"task.name": "wrong:nothing"}, "should make a mapping with x_train, y_train, x_test, y_test, classes"),
        ({"strategy.name": "wrong:nothing"}, "should make a Flower Strategy, a step or a list of steps, not NoneType"),
        ({"attack.kind": "wrong:nothing"}, "should make a Poison, or a function of an update and a generator"),
        ({"attack.kind": "wrong:too_short"}, "its update should be a vector of "),
        ({"attack.kind": "wrong:slips"}, "fails on a made-up update or batch: RuntimeError"),
        (
            {"attack.kind": "wrong:one_less"},
            "its data should be images as they came, and a label for each, not a tensor",
        ),
        ({"attack.kind": "wrong:panel_back"}, "its collusion should be a vector of "),
        ({"model.name": "wrong:wide"}, "two inputs should give logits of 2×10, not a tensor of 2×11"),
        ({"model.name": "wrong:blind"}, "the network cannot see inputs of 1×8×8: RuntimeError"),
        ({"model.name": "wrong:frozen"}, "the network has no parameters to train"),
        ({"model.name": "wrong:tied"}, "3.weight shares its values with another parameter"),
        ({"model.name": "wrong:wide", "model.dropout": 0.5}, "model.dropout = 0.5"),
        ({"task.name": "wrong:halves"}, "array y_test is missing"),
        ({"strategy.name": "wrong:forgetful"}, "fails on made-up replies: TypeError: a step should return a Progress"),
        ({"strategy.name": "wrong:no_model"}, "cannot make a model from made-up replies: aggregate.not-finite"),
        ({"strategy.name": "mine:short_ones", "strategy.aggregator": "krum"}, "strategy.aggregator = krum"),
        ({"strategy.name": "mine:cautious", "strategy.tau": 1.0}, "strategy.tau = 1.0: mine:cautious@"),
        ({"strategy.name": "mine:cautious", "strategy.base": "rfa"}, "strategy.base = rfa"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(here: Path, settings: dict[str, Any], expected: str) -> None:
    (here / "wrong.py").write_text(WRONG)
    (here / "broken.py").write_text("def net(:\n")
    (here / "raising.py").write_text("net = undefined\n")
    (here / "importing.py").write_text("import nowhere_at_all\n")
    if "attack.kind" in settings:
        settings = {**settings, "attack.fraction": 0.3}
    with pytest.raises(UserError) as caught:
        mine(**settings)
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert not (here / "runs").exists()


def test_the_command_line_says_it_in_one_line(here: Path) -> None:
    line = complaint("run", "digits-clean", "--engine", "inline", "--set=model.name=mine:nothing", cwd=here)
    assert "mine has no nothing" in line


def test_without_a_file_the_resolved_experiment_is_as_it_was(here: Path) -> None:
    assert resolve(mine(**OWN)).flat() == mine(**OWN).flat()
