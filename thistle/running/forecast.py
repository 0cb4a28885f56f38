"""What a run will take, before it takes it: one line."""

from __future__ import annotations

from thistle.attacks.roles import attackers as attackers_of
from thistle.experiments.experiment import Experiment
from thistle.protocol.layout import Layout
from thistle.tasks.models import build_model
from thistle.tasks.models.rofsl import meant
from thistle.tasks.task import Task

PROCESS = 0.45e9
"""Bytes that a process with torch and Flower holds (measured; Ray's own processes together as much again)."""
COPIES = 2
"""Copies of a client's model alive at once: its update, and as much again for what a rule makes of all of them."""


def plan(experiment: Experiment, task: Task, engine: str, cores: int) -> str:
    """Hosts × cores, clients per round, memory."""
    model = build_model(experiment.network, task.shape, task.classes, experiment.seed)
    workers = experiment.runtime.workers if engine == "ray" else 1
    processes = workers + 3 if engine == "ray" else 1
    pixels = task.dataset.test.pixels.nbytes * 4
    memory = processes * PROCESS + COPIES * experiment.client.per_round * Layout.of(model).num_bytes + pixels
    size = sum(parameter.numel() for parameter in model.parameters())
    attackers = len(attackers_of(experiment.attack, experiment.task.clients, experiment.seed))
    attack = f"{attackers} attack by {experiment.attack.kind}" if attackers else "nobody attacks"
    client = experiment.client
    network = meant(experiment.model.name, task.shape)
    training = "" if client.plain else f"clients train by {client.objective}, calibration {client.calibration}; "
    return (
        f"plan: {engine}, {workers} host{'s' * (workers != 1)} on {cores} core{'s' * (cores != 1)}; "
        f"{experiment.rounds} round{'s' * (experiment.rounds != 1)} of {experiment.client.per_round} "
        f"out of {experiment.task.clients} clients, "
        f"{attack}; {training}"
        f"{experiment.strategy.name} on {network} with {size:,} parameters; about {memory / 1e9:.1f} GB of memory"
    )
