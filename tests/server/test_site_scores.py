"""Sites with tables of their own, in this process: they agree on columns, train, and score the model on their rows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, MetricRecord, RecordDict

from tests.federations import model_sha, rounds, tiny
from tests.server.test_grid import ScriptedGrid
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json
from thistle.protocol.sites import SiteScore
from thistle.results.trained import load_trained
from thistle.server.app import _run
from thistle.server.transport.remote import RemoteGrid
from thistle.strategies.build import resolve
from thistle.tasks.tables.scheme import Scheme

COLUMNS = "age,sex,marker,class"
KEYS = {
    "rounds": 2,
    "task.clients": 3,
    "client.per-round": 3,
    "evaluate.every": 1,
    "task.label": "class",
    "task.server-data": "none",
    "model.name": "logistic",
}


def rows(seed: int, count: int = 60, sexes: str = "mf") -> list[str]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sick = rng.random() < 0.5
        sex = sexes[int(rng.integers(len(sexes)))]
        found.append(
            f"{rng.normal(60 + 8 * sick, 9):.2f},{sex},{rng.normal(sick, 0.4):.3f},{'sick' if sick else 'well'}"
        )
    return found


def write(path: Path, lines: list[str], head: str = COLUMNS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


class Hospitals(ScriptedGrid):
    """Each node has the data of its own that are given, and runs one client."""

    def __init__(self, experiment: Experiment, data: Mapping[int, str]) -> None:
        super().__init__(experiment, {node: str(client) for client, node in enumerate(data)})
        self.data = data
        self._one_at_a_time = threading.Lock()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Of this process there is one, whatever the number of its threads."""
        with self._one_at_a_time:
            return super().pull_messages(message_ids)

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        config = {"clients": self.claims[node], "data": self.data[node]}
        try:
            return self.app(message, Context(1, node, config, RecordDict(), dict(self._run_config)))  # type: ignore[arg-type]
        except Exception as error:
            return Message(Error(3, f"{type(error).__name__}: {error}"), reply_to=message)


def experiment(tmp_path: Path, **more: Any) -> Experiment:
    write(tmp_path / "server/test.csv", rows(9, 80))
    return tiny(tmp_path, **{**KEYS, "task.name": f"csv:{tmp_path / 'server'}", **more})


def carried_out(wanted: Experiment, data: Mapping[int, str]) -> RunFolder:
    folder = RunFolder(Path(wanted.run.out) / wanted.run.name)
    folder.create()
    _run(resolve(wanted), folder, RemoteGrid(Hospitals(wanted, data)), deployed=True)
    return folder


def sites(tmp_path: Path) -> dict[int, str]:
    return {2 + i: f"csv:{write(tmp_path / f'site{i}.csv', rows(i))}" for i in range(3)}


def test_three_sites_agree_train_and_score(cache: Path, tmp_path: Path) -> None:
    folder = carried_out(experiment(tmp_path), sites(tmp_path))
    scheme = Scheme.read(folder.scheme.read_text())
    assert scheme.inputs == ("age", "marker", "sex = f", "sex = m")
    assert 60 < scheme.columns[0].centre < 68
    summary = read_json(folder.summary)
    assert summary["accepted"] == 6 and summary["auc"] > 0.7
    assert [(site["client"], site["examples"]) for site in summary["site_scores"]] == [(0, 12), (1, 12), (2, 12)]
    assert all(0 <= site["accuracy"] <= 1 for line in rounds(folder) for site in line["site_scores"])
    model = load_trained(folder.path)
    assert [len(model.predict(tmp_path / "site0.csv")), model.facts.scheme] == [60, scheme.text()]
    again = carried_out(experiment(tmp_path, **{"run.name": "again"}), sites(tmp_path))
    assert model_sha(again) == model_sha(folder)


def test_a_site_that_does_not_fit_is_left_out_with_the_reason(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = sites(tmp_path) | {
        5: f"csv:{write(tmp_path / 'no-age.csv', [row.partition(',')[2] for row in rows(5)], 'sex,marker,class')}",
        6: f"csv:{write(tmp_path / 'new-class.csv', [*rows(6), '50,m,0.1,dead'])}",
        7: f"csv:{write(tmp_path / 'new-sex.csv', rows(7, sexes='mfx'))}",
    }
    more = {"task.clients": 6, "client.per-round": 6, "rounds": 1, "client.min-replies": 4}
    folder = carried_out(experiment(tmp_path, **more), data)
    assert read_json(folder.summary)["accepted"] == 4
    assert "no-age.csv: has no column 'age', which the federation uses" in caplog.text
    assert "new-class.csv has classes that the task lacks: dead" in caplog.text
    assert "x" in Scheme.read(folder.scheme.read_text()).columns[2].categories, "named by one site, known to all"


def test_nobody_to_ask_is_said(cache: Path, tmp_path: Path) -> None:
    arrays = tmp_path / "a.npz"
    np.savez(arrays, x_train=np.zeros((4, 3)), y_train=np.array(["sick", "well"] * 2))
    with pytest.raises(UserError, match="has no training rows, and no node has its own table"):
        carried_out(experiment(tmp_path, **{"runtime.workers": 1}), {2: f"npz:{arrays}"})


def test_series_of_a_sites_own_and_a_server_that_only_tests(cache: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def series(name: str, unit: bool, **splits: int) -> str:
        arrays = {}
        for split, count in splits.items():
            labels = rng.integers(0, 2, count)
            x = rng.normal(size=(count, 3, 20)) + labels[:, None, None]
            arrays |= {f"x_{split}": (x - x.min()) / np.ptp(x) if unit else x, f"y_{split}": labels}
        np.savez(tmp_path / name, **arrays)
        return f"npz:{tmp_path / name}"

    server = series("server.npz", False, test=30)
    data = {2: series("one.npz", False, train=30, test=10), 3: series("two.npz", True, train=30)}
    more = {**KEYS, "task.clients": 2, "client.per-round": 2, "model.name": "cnn1d", "task.name": server}
    folder = carried_out(tiny(tmp_path, **more), data)
    assert not folder.scheme.exists()
    summary = read_json(folder.summary)
    assert summary["accepted"] == 4 and [site["client"] for site in summary["site_scores"]] == [0]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"accuracy": 1.1, "loss": 0.1, "num-examples": 5},
        {"accuracy": 0.5, "loss": float("nan"), "num-examples": 5},
        {"accuracy": 0.5, "loss": 0.1, "num-examples": 0},
        {"accuracy": 1, "loss": 0.1, "num-examples": 5},
        {"accuracy": [0.5], "loss": 0.1, "num-examples": 5},
    ],
)
def test_a_score_that_makes_no_sense_is_none(said: dict[str, Any]) -> None:
    assert SiteScore.read({"metrics": MetricRecord(said)}) is None
    good = SiteScore(0.5, 0.1, 5)
    assert SiteScore.read(good.records()) == good
