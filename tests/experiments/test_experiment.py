"""Settings: one line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment, parse_overrides, read_file
from thistle.experiments.runfolder import RunFolder
from thistle.experiments.settings import Client, learning_rate, parse_ids
from thistle.running.prepare import settle


@pytest.mark.parametrize(
    ("flat", "expected"),
    [
        ({"task.nmae": "x"}, "task.nmae: no such key; did you mean task.name?"),
        ({"task.clients": 0}, "task.clients = 0: should be greater than or equal to 1"),
        ({"client.lr": "fast"}, "client.lr = 'fast': should be a number"),
        ({"client.lr": float("nan")}, "client.lr = nan: should be a finite number"),
        ({"client.epochs": True}, "client.epochs = True: should be a whole number"),
        ({"client.epochs": 1.5}, "client.epochs = 1.5: should be a whole number"),
        ({"task.partition": "iidd"}, "task.partition = 'iidd': should be 'iid', 'dirichlet-even'"),
        ({"client.per-round": 51}, "client.per-round = 51: there are only task.clients = 50"),
        ({"client.min-replies": 11}, "client.min-replies = 11: at most client.per-round = 10 can reply"),
        ({"client.lr-schedule": "cosinus"}, "client.lr-schedule = 'cosinus': should be constant, cosine or step"),
        ({"client.lr-schedule": "step:3:nan"}, "a factor above 0"),
        ({"client.lr-schedule": "step:3:-1"}, "a factor above 0"),
        ({"client.lr-schedule": "step:0:0.5"}, "with rounds from 1 on"),
        ({"client.lr-schedule": "step:1,2:1e300"}, "client.lr-schedule = 'step:1,2:1e300'"),
        ({"client.lr-schedule": "step:1,2:1e-300"}, "rates that stay above 0"),
        ({"seed": 2**63}, "should be less than 9223372036854775808"),
        ({"attack.clients": "9" * 5000}, "is not a client id"),
        ({"attack.clients": "3-99999999999"}, "'3-99999999999' is outside of 0-49"),
        ({"client.clip": "on"}, "client.clip = 'on': should be a number; or should be 'auto' or 'off'"),
        ({"client.clip": 0.0}, "client.clip = 0.0: should be greater than 0; or should be 'auto' or 'off'"),
        ({"client.clip": float("inf")}, "client.clip = inf: should be a finite number"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(flat: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.of(flat)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_survives_its_file(tmp_path: Path) -> None:
    experiment = Experiment.of({"client.lr": 1, "model.dropout": 0.3, "run.name": "ü [x]", "task.alpha": 1e-3})
    folder = RunFolder(tmp_path)
    folder.save_experiment(experiment)
    assert folder.load_experiment() == experiment
    assert Experiment.of(experiment.flat()) == experiment


def test_overrides_need_no_quotes_and_keep_text_as_text() -> None:
    pairs = ["task.name=folder:/a b", "client.lr=1e-3", "attack.clients=7", "run.name='x'", "model.dropout=false"]
    assert parse_overrides(pairs) == {
        "task.name": "folder:/a b",
        "client.lr": 1e-3,
        "attack.clients": "7",
        "run.name": "x",
        "model.dropout": False,
    }


@pytest.mark.parametrize("pair", ["client.lr", "=3", "clients.lr=1"])
def test_bad_overrides_are_refused(pair: str) -> None:
    with pytest.raises(UserError):
        parse_overrides([pair])


def test_files_that_are_not_experiments(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read as TOML"):
        read_file(tmp_path / "bad.toml")


def test_calfats_clients_train_as_it_wants_unless_told_otherwise() -> None:
    settle({"strategy.name": "calfat", "client.adversarial-ratio": 0.5, "client.logit-scale": 10.0}, "run")
    with pytest.raises(UserError, match=r"client\.logit-scale"):
        settle({"strategy.name": "calfat", "client.objective": "pgd", "client.logit-scale": 10.0}, "run")


def test_ids() -> None:
    assert parse_ids("attack.clients", "4, 0,2-3,3", 5) == [0, 2, 3, 4]
    for text in ("a", "3-", "-3", "3-2", "5", "1-2-3"):
        with pytest.raises(UserError):
            parse_ids("attack.clients", text, 5)


def test_learning_rate_schedules() -> None:
    rates = [learning_rate(Client(lr=0.8, lr_schedule="step:2,3:0.5"), number, 4) for number in (1, 2, 3, 4)]
    assert rates == [0.8, 0.8, 0.4, 0.2]
    cosine = [learning_rate(Client(lr=1.0, lr_schedule="cosine"), number, 2) for number in (1, 2)]
    assert cosine == pytest.approx([1.0, 0.5])


def test_a_key_that_is_a_word_or_a_number_takes_both_from_the_command_line() -> None:
    said = {text: parse_overrides([f"client.clip={text}"])["client.clip"] for text in ("2", "1.5", "off", '"auto"')}
    assert said == {"2": 2, "1.5": 1.5, "off": "off", '"auto"': "auto"}
    assert parse_overrides(["model.name=5"]) == {"model.name": "5"}
