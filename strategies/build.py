"""From an experiment to its strategy: first with every setting resolved, then as the object that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.serverapp.strategy import Strategy

from thistle.experiments.choices import checked, values_of
from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import is_own, load_own, make_own, wrong_result
from thistle.experiments.settings import dashed
from thistle.protocol.layout import Layout
from thistle.protocol.training import LOSS
from thistle.strategies import registry
from thistle.strategies.accounting import check_local
from thistle.strategies.flower import Adapter
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import STRATEGIES, Named, settings_of, with_settings
from thistle.strategies.rounds import Step
from thistle.strategies.rules.flower import FromFlower
from thistle.strategies.steps.learning import Objective
from thistle.tasks.models import build_model
from thistle.tasks.task import Task
from thistle.tasks.training import pick_device, to_tensors

KEY = "strategy.name"
AUTO_CLIP = 1.5
"""client.clip = "auto" in a deployment, for rules that follow a single client as far as it goes."""


@dataclass(kw_only=True, eq=False, repr=False)
class Own(Weighted, Pipeline):
    """Steps of the user's own in place of a rule."""

    made: Sequence[Step] = ()

    def steps(self) -> Sequence[Step]:
        """As the user's factory made them."""
        return self.made


def find(name: str) -> type[Named]:
    """The class of this name, a class of the user's own, or the one that holds the user's own steps."""
    if not is_own(name):
        return registry.find(name)
    made: Any = load_own(name, KEY)
    return _own_class(made) if inspect.isclass(made) and issubclass(made, Pipeline) else Own


def _own_class(cls: type[Pipeline]) -> type[Pipeline]:
    """A rule of the user's own, under the name of its class unless it has another."""
    if "name" not in vars(cls):
        cls.name = cls.__name__
    return with_settings(cls)


def chosen(experiment: Experiment) -> Named:
    """The experiment's strategy with its settings, and without anything to work on."""
    wanted = experiment.strategy
    cls = find(wanted.name).variant(wanted.options)
    STRATEGIES.refuse_unknown(cls, wanted.name, wanted.options)
    return cls(**values_of(checked(cls, wanted.options, "strategy.")))


def left_behind(keys: Mapping[str, Any], changes: Mapping[str, Any]) -> set[str]:
    """The keys that these changes drop: another strategy does without the old one's settings that it does not have."""
    if is_own(str(changes.get(KEY, ""))):
        return set()
    return STRATEGIES.left_behind(keys, changes, lambda name, options: find(name).variant(options))


def resolve(experiment: Experiment, deployed: bool = False) -> Experiment:
    """The same experiment with every setting of its strategy, and client.clip = "auto" replaced by what it means.

    `deployed`: it is made for real nodes. A repetition elsewhere has the number, so "auto" is off there.
    """
    named = chosen(experiment)
    flat = experiment.flat()
    flat |= {f"strategy.{dashed(name)}": value for name, value in values_of(named).items()}
    flat |= {f"client.{name}": value for name, value in named.client_defaults(experiment).items()}
    if flat["client.clip"] == "auto":
        flat["client.clip"] = AUTO_CLIP if deployed and named.is_mean() else "off"
    resolved = Experiment.of(flat)
    named.check(resolved)
    check_local(named, resolved)
    return resolved


def needs_server_data(experiment: Experiment) -> bool:
    """Whether a step of the strategy uses the server's own data, or, being the user's own, may do so."""
    return is_own(experiment.strategy.name) or bool(chosen(experiment).server_data_for())


def make_strategy(
    experiment: Experiment,
    task: Task,
    layout: Layout,
    objective: Objective | None = None,
    secret: Callable[[], int] | None = None,
) -> Pipeline | Adapter:
    """The strategy that a resolved experiment names.

    `objective`: what its server learns by, as the clients do. `secret`: what noise is drawn from in a deployment.
    """
    named = chosen(experiment)
    if isinstance(named, FromFlower):
        return Adapter(named.make(experiment), layout, named.needs_losses, logged=frozenset({LOSS}))
    assert isinstance(named, Pipeline)
    context = _context(named, experiment, task)
    if named.server_objective == "clients":
        context["objective"] = objective
    if hasattr(named, "secret"):
        context |= {"expected": experiment.client.per_round, "secret": secret and secret()}
    if isinstance(named, Own):
        made = _own(experiment, layout)
        if isinstance(made, Strategy):
            return _adapted(made, layout)
        context["made"] = made
    pipeline = type(named)(**values_of(named), **context)
    pipeline.bind(layout)
    return _adapted(pipeline, layout)  # type: ignore[return-value]


def _context(named: Pipeline, experiment: Experiment, task: Task) -> dict[str, Any]:
    """What an experiment knows besides the strategy's settings."""
    client = experiment.client
    context: dict[str, Any] = {
        "fraction_train": client.per_round / experiment.task.clients,
        "min_train_nodes": client.per_round,
        "fraction_evaluate": 0.0,
        "seed": experiment.seed,
        "num_clients": experiment.task.clients,
        "local_epochs": client.epochs,
        "local_batch_size": client.batch_size,
        "clients_factor": True,
        "tell": named.tell_clients(experiment),
        "weight_decay": client.weight_decay,
        "prior_delta": client.prior_delta,
    }
    if task.server_images is not None:
        device = pick_device(experiment.runtime.device)
        context["server_data"] = to_tensors(task.server_images, device)
        context["model"] = build_model(experiment.network, task.shape, task.classes, experiment.seed).to(device)
    return context


def _adapted(made: Strategy, layout: Layout) -> Pipeline | Adapter:
    """A pipeline as it is, unless somebody has taught it to aggregate messages in another way."""
    if isinstance(made, Pipeline) and type(made).aggregate_train is Pipeline.aggregate_train:
        return made
    return Adapter(made, layout)


def _own(experiment: Experiment, layout: Layout) -> Strategy | list[Step]:
    """What the user's factory makes of (experiment, layout): a Flower strategy, or the steps of the aggregation."""
    name = experiment.strategy.name
    made = make_own(name, KEY, experiment, layout)
    if isinstance(made, Strategy):
        _refuse_options(experiment)
        return made
    own = list(made) if isinstance(made, list | tuple) else [made]
    wrong = [step for step in own if not callable(step)]
    if wrong or not own:
        raise wrong_result(name, KEY, "a Flower Strategy, a step or a list of steps", wrong[0] if wrong else made)
    return own


def _refuse_options(experiment: Experiment) -> None:
    """A strategy that the user has made whole has no options of ours."""
    for name, known in settings_of(Own).model_fields.items():
        value = experiment.strategy.options.get(name, known.default)
        if value != known.default:
            raise UserError(
                f"strategy.{dashed(name)} = {value}: {experiment.strategy.name} is a strategy of Flower's kind "
                f"and has no {dashed(name)}"
            )
