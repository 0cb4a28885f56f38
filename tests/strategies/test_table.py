"""The table of strategies: every row builds, every "default" has a meaning, and what cannot work is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout
from thistle.strategies import steps
from thistle.strategies.build import AUTO_CLIP, find, make_strategy, needs_server_data, resolve
from thistle.strategies.flower import Adapter
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import about, settings_of, strategies
from thistle.strategies.rules.centered_clipping import ClipAroundLast
from thistle.strategies.rules.fltrust import TrustByCosine
from thistle.strategies.rules.foolsgold import OneVotePerDirection
from thistle.strategies.steps.filters import LossFilter, ZenoFilter
from thistle.strategies.steps.share import MaliciousShare
from thistle.tasks.dataset import Dataset, Images
from thistle.tasks.task import Task

IMAGES = Images(np.zeros((6, 1, 4, 4), np.uint8), np.arange(6) % 3)
PARTITION: Any = None
TASK = Task(Dataset("tiny", ("a", "b", "c"), IMAGES, IMAGES), PARTITION, IMAGES)
PLAIN = Layout.of(nn.Linear(2, 2))
NORMED = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
NEED = {"rofsl", "evidence", "fsl", "zeno", "fltrust", "server-alone", "bant"}


def experiment(**more: Any) -> Experiment:
    """Keys of `strategy` by name, others with their section: **{"client.per-round": 5}."""
    keys = {key if "." in key else f"strategy.{key}": value for key, value in more.items()}
    return Experiment.of({"client.per-round": 7, "model.name": "mlp", **keys})


def built(layout: Layout = PLAIN, **more: Any) -> Pipeline | Adapter:
    return make_strategy(resolve(experiment(**more)), TASK, layout)


def pipeline(**more: Any) -> Pipeline:
    strategy = built(**more)
    assert isinstance(strategy, Pipeline)
    return strategy


@pytest.mark.parametrize("name", strategies())
def test_every_default_is_filled(name: str) -> None:
    resolved = resolve(experiment(name=name))
    fields = settings_of(find(name)).model_fields
    assert resolved.strategy.options == {key: field.default for key, field in fields.items()}
    assert resolve(resolved) == resolved


def test_what_the_user_says_stays() -> None:
    said = {"name": "rofsl", "gamma": 0.05, "tau": 0.0, "filter": "none", "weighted": True}
    flat = resolve(experiment(**said)).flat()
    assert {key: flat[f"strategy.{key}"] for key in said} == said
    assert flat["strategy.aggregator"] == "geometric-median"


MEANS = {
    *("fedavg", "fedprox", "scaffold", "calfat", "fsl", "fedsvd", "foolsgold", "fedcpa", "rlr", "fldetector", "bant")
} | {f"flwr-{name}" for name in ("fedavg", "fedavgm", "fedprox", "fedadam", "fedyogi", "qfedavg")}


@pytest.mark.parametrize("name", strategies())
def test_auto_clips_means_on_real_nodes_and_nothing_elsewhere(name: str) -> None:
    assert resolve(experiment(name=name)).client.clip == "off"
    deployed = resolve(experiment(name=name), deployed=True)
    assert deployed.client.clip == (AUTO_CLIP if name in MEANS else "off")
    assert resolve(deployed) == resolve(deployed, deployed=True) == deployed, "once settled, it stays"


@pytest.mark.parametrize(
    ("keys", "clip"),
    [
        ({"name": "calfat", "base": "rofsl"}, "off"),
        ({"name": "calfat", "base": "scaffold"}, AUTO_CLIP),
        ({"name": "rofsl", "aggregator": "mean"}, AUTO_CLIP),
        ({"name": "median"}, "off"),
        ({"name": "fedavg", "pre": "arc"}, "off"),
        ({"name": "fedavg", "pre": "arc", "malicious": 0}, AUTO_CLIP),
        ({"name": "fedavg", "pre": "nnm"}, AUTO_CLIP),
        ({"name": "rlr", "pre": "arc+nnm"}, "off"),
        ({"name": "foolsgold", "pre": "arc"}, "off"),
        ({"name": "rofsl", "aggregator": "mean", "pre": "arc"}, "off"),
        ({"name": "fedavg", "client.clip": "off"}, "off"),
        ({"name": "fedavg", "client.clip": 3.0}, 3.0),
        ({"name": "rofsl", "client.clip": 3.0}, 3.0),
    ],
)
def test_auto_goes_by_the_rule_and_what_the_user_says_stays(keys: dict[str, Any], clip: float | str) -> None:
    assert resolve(experiment(**keys), deployed=True).client.clip == clip


@pytest.mark.parametrize("name", strategies())
@pytest.mark.parametrize("layout", [PLAIN, NORMED], ids=["plain", "buffers"])
def test_every_row_builds(name: str, layout: Layout) -> None:
    if name == "dp-fedavg" and layout.buffers:
        with pytest.raises(UserError, match="without batch norm"):
            built(layout, name=name)
        return
    strategy = built(layout, name=name)
    if name.startswith("flwr-"):
        assert isinstance(strategy, Adapter)
        assert type(strategy.inner).__name__.lower() == name.removeprefix("flwr-")
    else:
        assert isinstance(strategy, Pipeline) and strategy.plan


def test_every_row_explains_itself() -> None:
    assert all(about(cls) and cls.paper for cls in strategies().values())


def test_the_papers_strategies_are_these_lists() -> None:
    loss, median, clip, learn = pipeline(name="rofsl").plan
    assert loss == LossFilter(0.1, 0.5) and clip == steps.Clip(1.0) and learn == steps.ServerLearning(0.5, 1.0)
    assert isinstance(median, steps.Aggregation) and median.name == "geometric-median"
    mean, rate, learn = pipeline(name="fsl").plan
    assert isinstance(mean, steps.Aggregation) and mean.name == "fsl"
    assert rate == steps.ServerRate(2.0) and learn == steps.ServerLearning(0.5, 0.0)
    zeno, mean = pipeline(name="zeno").plan
    assert zeno == ZenoFilter(0.1, 0.1) and isinstance(mean, steps.Aggregation) and mean.name == "mean"
    assert [type(step) for step in pipeline(name="rfa").plan] == [steps.Aggregation]
    assert pipeline(name="fltrust").plan == (TrustByCosine(),)
    assert pipeline(name="foolsgold").plan == (OneVotePerDirection(),)
    assert pipeline(name="server-alone").plan == (steps.ServerLearning(0.5, 0.0),)
    assert pipeline(name="centered-clipping", tau=2.0).plan[0] == ClipAroundLast(2.0)


def test_zero_turns_a_step_off() -> None:
    assert [type(step) for step in pipeline(name="rofsl", gamma=0.0, tau=0.0, filter="none").plan] == [
        steps.Aggregation
    ]


def test_an_automatic_share() -> None:
    step = pipeline(name="rofsl", theta="auto").plan[0]
    assert isinstance(step, LossFilter) and isinstance(step.theta, MaliciousShare)


def test_settings_reach_the_pipeline() -> None:
    strategy = pipeline(
        name="rofsl", reputation=True, weighted=True, **{"client.weight-decay": 0.25, "server-epochs": 3}
    )
    assert strategy.reputation and strategy.weighs() and strategy.min_train_nodes == 7
    server = strategy._server
    assert server is not None and (server.weight_decay, server.epochs, server.batch_size) == (0.25, 3, 180)
    assert pipeline(name="fedavg").weighs() and not pipeline(name="rofsl").weighs()
    assert not pipeline(name="rofsl").reputation


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "krum": (
        {"name": "krum", "malicious": 3},
        "strategy.malicious = 3: krum needs at least 9 updates per round, but gets 7",
    ),
    "multi-krum": ({"name": "multi-krum", "malicious": 3}, "strategy.malicious = 3: multi-krum needs"),
    "bulyan": (
        {"name": "bulyan", "malicious": 2},
        "strategy.malicious = 2: bulyan needs at least 11 updates per round, but gets 7",
    ),
    "Flower's Krum": ({"name": "flwr-krum", "malicious": 3}, "strategy.malicious = 3: flwr-krum needs"),
    "Flower's multi-Krum": ({"name": "flwr-multikrum", "malicious": 3}, "strategy.malicious = 3: flwr-multikrum needs"),
    "Flower's Bulyan": ({"name": "flwr-bulyan", "malicious": 2}, "strategy.malicious = 2: flwr-bulyan needs"),
    "a rule of another": ({"name": "rfa", "aggregator": "mean"}, "strategy.aggregator = mean: rfa has no such setting"),
    "no setting of any": (
        {"name": "rfa", "tauu": 1.0},
        "strategy.tauu: rfa has no such setting; did you mean strategy.tau?",
    ),
    "a wrong value": ({"name": "rofsl", "rho": -1.0}, "strategy.rho = -1.0: should be greater than or equal to 0"),
    "a wrong type": ({"name": "rofsl", "theta": "many"}, "strategy.theta = 'many': "),
    "mixing": ({"name": "rfa", "pre": "nnm", "malicious": 4}, "strategy.malicious = 4: nearest-neighbour mixing needs"),
    "clipping": ({"name": "fedavg", "pre": "arc", "malicious": 4}, "strategy.malicious = 4: adaptive clipping needs"),
    "clipping and mixing": ({"name": "rfa", "pre": "arc+nnm", "malicious": 4}, "strategy.malicious = 4: nearest-neig"),
    "clipped control variates": (
        {"name": "scaffold", "pre": "arc"},
        "strategy.pre = arc: SCAFFOLD's control variates need the updates as they were trained, not clipped",
    ),
    "clipped and mixed FoolsGold": ({"name": "foolsgold", "pre": "arc+nnm"}, "strategy.pre = arc+nnm: foolsgold looks"),
    "meamed": ({"name": "meamed", "malicious": 4}, "strategy.malicious = 4: meamed needs at least 9 updates per round"),
    "caf": ({"name": "caf", "malicious": 4}, "strategy.malicious = 4: caf needs at least 9 updates per round"),
    "mda": ({"name": "mda", "malicious": 4}, "strategy.malicious = 4: mda needs at least 9 updates per round"),
    "a search without end": (
        {"name": "mda", "malicious": 17},
        "strategy.malicious = 17: should be less than or equal to 16",
    ),
    "votes": (
        {"name": "rlr", "threshold": 8},
        "strategy.threshold = 8: rlr needs at least 8 updates per round, but ge",
    ),
    "no length": ({"name": "norm-clipping", "bound": 0.0}, "strategy.bound = 0.0: should be greater than 0"),
    "no such length": ({"name": "norm-clipping", "bound": "mean"}, "strategy.bound = 'mean': "),
    "centered clipping": ({"name": "centered-clipping", "tau": 0.0}, "strategy.tau = 0.0: centered clipping needs"),
    "nothing": ({"name": "server-alone", "gamma": 0.0}, "strategy.gamma = 0.0: server-alone would never learn"),
    "rofsl": ({"name": "rofsl", "task.server-data": "none"}, "strategy.filter = loss needs server data; set task.ser"),
    "fsl": (
        {"name": "fsl", "task.server-data": "none"},
        "strategy.gamma = 0.5 needs server data; set task.server-data",
    ),
    "fltrust": ({"name": "fltrust", "task.server-data": "none"}, "strategy.name = fltrust needs server data"),
    "weights of Krum": (
        {"name": "krum", "weighted": True},
        "strategy.weighted = true: krum has no such setting; those that have it: fedavg",
    ),
    "weights of MeaMed": ({"name": "meamed", "weighted": True}, "strategy.weighted = true: meamed has no such"),
    "weights of MDA": ({"name": "mda", "weighted": True}, "strategy.weighted = true: mda has no such setting"),
    "weights of CAF": ({"name": "caf", "weighted": True}, "strategy.weighted = true: caf has no such setting"),
    "a cap of nothing": ({"name": "median", "weight-cap": 0.0}, "strategy.weight-cap = 0.0: should be greater than 0"),
    "no cap of that name": ({"name": "median", "weight-cap": "most"}, "strategy.weight-cap = 'most': "),
    "weights of centered clipping": (
        {"name": "centered-clipping", "weighted": True},
        "strategy.weighted = true: centered-clipping has no such setting",
    ),
    "weights of Flower's": (
        {"name": "flwr-krum", "weighted": True},
        "strategy.weighted = true: flwr-krum has no such setting",
    ),
    "statistics of no data": (
        {"name": "fedavg", "batch-norm": "server", "task.server-data": "none"},
        "strategy.batch-norm = server needs server data; set task.server-data",
    ),
    "statistics under Flower's": (
        {"name": "flwr-fedavg", "batch-norm": "server"},
        "strategy.batch-norm = server: flwr-fedavg has no such setting",
    ),
    "unknown": ({"name": "rofls"}, "strategy.name = 'rofls': no such strategy; did you mean rofsl?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(case: str) -> None:
    keys, message = REFUSED[case]
    with pytest.raises(UserError) as refused:
        resolve(experiment(**keys))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "f", "n"), [("krum", 2, 7), ("bulyan", 1, 7), ("multi-krum", 2, 7), ("mda", 3, 7), ("caf", 3, 7)]
)
def test_the_largest_f_is_allowed(name: str, f: int, n: int) -> None:
    resolve(experiment(name=name, malicious=f, **{"client.per-round": n}))
    with pytest.raises(UserError):
        resolve(experiment(name=name, malicious=f, **{"client.per-round": n - 1}))


@pytest.mark.parametrize("name", strategies())
def test_who_needs_server_data(name: str) -> None:
    assert needs_server_data(resolve(experiment(name=name))) == (name in NEED)
    if name not in NEED:
        resolve(experiment(name=name, **{"task.server-data": "none"}))


def test_the_nearest_name_is_offered() -> None:
    assert find("rofsl").paper == "RoFSL"
    with pytest.raises(UserError, match="did you mean centered-clipping"):
        find("centred-clipping")
