"""Sweep files: from axes to cells; what is wrong is said in one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from thistle.commands.sweep import tell
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.sweeps.cells import check_folder, distinct, identity
from thistle.sweeps.expectations import Expectation, Finding, check
from thistle.sweeps.files import Sweep, read_sweep
from thistle.sweeps.tables import markdown, spread

GOOD = """
seeds = [0, 1]
[axes]
attack.fraction = [0.0, 0.2]
[set]
attack.kind = "zero"
"""


def sweep(tmp_path: Path, text: str, *overrides: str) -> Sweep:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_sweep(str(path), overrides)


def test_axes_are_multiplied_and_zipped_ones_go_together(tmp_path: Path) -> None:
    both = (
        GOOD + '[zip.who]\nlabels = ["A", "B"]\nstrategy.name = ["rfa", "rofsl"]\nstrategy.gamma = ["default", 0.1]\n'
    )
    cells = sweep(tmp_path, both).cells(tmp_path / "out")
    assert len(cells) == len({cell.id for cell in cells}) == len({cell.folder.path for cell in cells}) == 8
    assert cells[1].axes == {"attack.fraction": 0.0, "who": "B"} and cells[1].seed == 0
    assert cells[1].settings == {"attack.fraction": 0.0, "strategy.name": "rofsl", "strategy.gamma": 0.1}
    assert cells[1].experiment.strategy.name == "rofsl" and cells[1].experiment.strategy.gamma == 0.1
    assert cells[0].experiment.strategy.gamma == 0.0  # rfa's own
    assert cells[0].id in cells[0].folder.path.name


def test_a_cell_is_known_by_all_that_decides_its_result() -> None:
    def digits(**keys: object) -> str:
        return identity(Experiment.of({key.replace("_", "."): value for key, value in keys.items()}))

    assert digits() == digits(run_name="other", run_out="elsewhere", runtime_workers=7, runtime_chunk=3)
    others = [digits(), digits(seed=1), digits(client_lr=0.2), digits(stop_patience=1)]
    assert len(set(others)) == len(others)


KINDS = """
[axes]
attack.kind = ["none", "sign-flip", "ipm"]
attack.fraction = [0.1, 0.3]
"""


@pytest.mark.parametrize("more", ["", "[set]\nattack.strength = 2.0\n", "attack.strength = [1.0, 2.0]\n"])
def test_without_an_attack_the_points_of_a_grid_share_a_cell(tmp_path: Path, more: str) -> None:
    cells = sweep(tmp_path, KINDS + more).cells(tmp_path / "out")
    none = [cell for cell in cells if cell.axes["attack.kind"] == "none"]
    times = 2 if "[1.0" in more else 1
    assert (len(cells), len(none), len(distinct(cells))) == (6 * times, 2 * times, 1 + 4 * times)
    assert distinct(cells)[0] is none[0] and len({cell.folder for cell in none}) == 1
    assert [cell.axes["attack.fraction"] for cell in none] == sorted([0.1, 0.3] * times)
    assert none[0].experiment.attack == Experiment.of({}).attack


@pytest.mark.parametrize(
    "text",
    [
        '[zip.a]\nlabels = ["x", "y"]\nattack.kind = ["none", "none"]\n',
        '[axes]\nattack.fraction = [0.1, 0.2]\n[set]\nattack.kind = "none"\n',
    ],
)
def test_the_same_twice_by_mistake_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"same experiment|nobody attacks with attack.kind = none"):
        sweep(tmp_path, text).cells(tmp_path / "out")


def test_a_strength_belongs_to_its_attack_unless_the_sweep_itself_names_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('attack.kind = "scale"\nattack.fraction = 0.3\nattack.strength = 77.0\n')
    axes = 'preset = "base.toml"\n[axes]\nattack.kind = ["scale", "ipm", "none"]\n'
    found = [cell.experiment.attack.strength for cell in sweep(tmp_path, axes).cells(tmp_path / "out")]
    assert found == [77.0, 0.5, "default"]
    said = sweep(tmp_path, axes, "attack.strength=3.0").cells(tmp_path / "out")
    assert [cell.experiment.attack.strength for cell in said] == [3.0, 3.0, "default"]


def test_a_folder_that_is_there_is_found_by_its_id(tmp_path: Path) -> None:
    home = tmp_path / "out"
    cell = sweep(tmp_path, GOOD).cells(home)[0]
    (home / f"renamed-{cell.id}").mkdir(parents=True)
    again = sweep(tmp_path, GOOD).cells(home)[0]
    assert again.folder.path.name == f"renamed-{cell.id}" == again.experiment.run.name
    again.folder.save_experiment(again.experiment)
    check_folder(again)
    again.folder.save_experiment(Experiment.of({"seed": 77}))
    with pytest.raises(UserError, match="no longer this cell's"):
        check_folder(again)


def test_a_preset_beside_the_file_is_the_start_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("rounds = 7\nclient.lr = 0.5\n")
    text = 'preset = "base.toml"\n' + GOOD + "client.epochs = 3\n"
    experiment = sweep(tmp_path, text, "client.lr=0.25").cells(tmp_path)[0].experiment
    assert (experiment.rounds, experiment.client.lr, experiment.client.epochs) == (7, 0.25, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[axis]\n", "mine.toml: axis: no such key; did you mean axes?"),
        ("[axes]\nattack.fracton = [0.1]\n", "[axes] attack.fracton: no such key; did you mean attack.fraction?"),
        ("[axes]\nattack.fraction = 0.1\n", "axes.attack.fraction = 0.1: should be a list of values"),
        ("[axes]\nattack.fraction = []\n", "should be a list of values"),
        ("[axes]\nattack.fraction = [0.1, 0.1]\n", "a value stands there twice"),
        ("[axes]\nseed = [1, 2]\n", "write seeds = [0, 1, 2] at the top"),
        ("[axes]\nrun.name = ['a']\n", "a sweep names its runs itself"),
        ("seeds = [0, 0]\n", "seeds = [0, 0]: should be a list of different whole numbers"),
        ("seeds = 3\n", "seeds = 3: should be a list"),
        ("preset = 'digits-claen'\n", "did you mean digits-clean?"),
        ("engine = 'slow'\n", "engine = 'slow': should be ray or inline"),
        ("columns = 'rounds'\n", "columns = 'rounds': should be an axis"),
        ("axes = 3\n", "axes = 3: should be a table"),
        ("[zip.a]\nclient.lr = [0.1]\nrounds = [1, 2]\n", "lists must be equally long"),
        ("[zip.a]\nlabels = ['x']\n", "needs at least one setting"),
        ("[zip.a]\nlabels = ['x']\nrounds = [1, 2]\n", "labels: should be 2 texts"),
        ("[axes]\nrounds = [1]\n[set]\nrounds = 2\n", "[set] rounds: is an axis of this sweep"),
        ("[axes]\nrounds = [1]\n[zip.a]\nrounds = [1]\n", "rounds: is in two axes"),
        ("[axes]\nrounds = [1]\n[[expect]]\nbetter = { rounds = 2 }\n", "rounds = 2: is not one of its values, [1]"),
        ("[axes]\nrounds = [1]\n[[expect]]\nbetter = { round = 1 }\n", "round: is not an axis of this sweep"),
        ("[[expect]]\nbest = 3\n", "expect 1: best: no such key"),
        ("rounds = \n", "cannot be read as TOML"),
        ("[axes]\nclient.lr = [0.1, -1.0]\n", "client.lr=-1: client.lr = -1.0: should be greater than 0"),
        ("[axes]\nstrategy.name = ['fedavgg']\n", "no such strategy; did you mean fedavg"),
        ("[zip.a]\nlabels = ['x', 'y']\nrounds = [1, 1]\n", "a=y is the same experiment as a=x seed=0; leave one out"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError) as error:
        sweep(tmp_path, text).cells(tmp_path / "out")
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_axis_cannot_be_set_from_the_command_line(tmp_path: Path) -> None:
    for pair, expected in {"attack.fraction=0.1": "is an axis", "seed=3": "use seeds in the file"}.items():
        with pytest.raises(UserError, match=expected):
            sweep(tmp_path, GOOD, pair)


def test_expectations_compare_means_over_the_cells_they_choose() -> None:
    cells = [
        ({"rule": "a", "seed": 0}, {"accuracy": 0.9}),
        ({"rule": "a", "seed": 1}, {"accuracy": 0.8}),
        ({"rule": "b", "seed": 0}, {"accuracy": 0.6}),
    ]
    wanted = Expectation("", {"rule": "a"}, {"rule": "b"}, by=25.0, metric="accuracy")
    assert check(wanted, cells).points == 25.0 and check(wanted, cells).held
    assert not check(Expectation("", {"rule": "b"}, {"rule": "a"}, -24.0, "accuracy"), cells).held
    missing = check(wanted, [*cells, ({"rule": "b", "seed": 1}, None)])
    assert missing.points is None and not missing.held and missing.document()["held"] is None
    assert check(Expectation("", {"rule": "a"}, {"rule": "b"}, 0.0, "pgd20"), cells).points is None


def test_what_did_not_hold_is_said_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Expectation("a is better", {"rule": "a"}, {"rule": "b"}, by=5.0, metric="accuracy")
    assert tell([Finding(wanted, 5.0)], {})
    assert not tell([Finding(wanted, 4.0), Finding(wanted, None)], {})
    shown = capsys.readouterr().out
    assert "held: a is better: rule a above rule b by 5 points" in shown
    assert "NOT held" in shown and "not known" in shown


def test_means_come_with_their_standard_error() -> None:
    assert spread([0.9, 0.92, 0.94], 3) == "92.0 ± 1.2"
    assert spread([0.5], 1) == "50.0"
    assert spread([0.5], 2) == "50.0 (1 of 2)"
    assert spread([], 2) == "–"
    assert markdown(["a|b"], [["c"]]) == "| a\\|b |\n| --- |\n| c |"
