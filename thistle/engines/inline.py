"""The inline engine: the same ServerApp and ClientApp in this one process, no SuperLink, no Ray."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from thistle.attacks.roles import SIMULATED
from thistle.experiments.experiment import Experiment
from thistle.experiments.randomness import ONE_AT_A_TIME
from thistle.flower_compat.error_codes import ErrorCode
from thistle.flower_compat.messages import identify, name_message


class InlineGrid(Grid):
    """`hosts` virtual nodes whose ClientApp is called when a reply is pulled."""

    runs_clients_here = True
    """They draw from this process's random numbers: nobody else may meanwhile."""

    def __init__(self, app: ClientApp, experiment: Experiment, hosts: int) -> None:
        identify()
        self.app = app
        self.hosts = list(range(2, hosts + 2))
        self._run_config = experiment.flat()
        self._pending: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return self.hosts

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name = name_message(message)
            self._pending[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Runs one waiting message, so that its reply is seen before the next one starts."""
        for name in message_ids:
            if name in self._pending:
                return [self._answer(self._pending.pop(name))]
        return []

    def _answer(self, message: Message) -> Message:
        context = Context(
            run_id=1,
            node_id=message.metadata.dst_node_id,
            node_config={SIMULATED: True},
            state=RecordDict(),
            run_config=dict(self._run_config),
        )
        try:
            return self.app(message, context)
        except Exception:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, traceback.format_exc()), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [reply for name in self.push_messages(messages) for reply in self.pull_messages([name])]

    def set_run(self, run: object) -> None:
        raise NotImplementedError("an inline run has no SuperLink to register with")

    @property
    def run(self) -> object:  # type: ignore[override]
        raise NotImplementedError("an inline run has no SuperLink to register with")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def run_inline(experiment: Experiment) -> None:
    """Run it here; the run folder is the result."""
    from thistle.client.app import app as client_app
    from thistle.server.app import main

    grid = InlineGrid(client_app, experiment, experiment.runtime.workers)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(experiment.flat()))
    main(grid, context)


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Without what Flower's strategies log of their rounds, of which progress and run folder tell already."""
    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.ERROR)
    try:
        yield
    finally:
        flower.setLevel(level)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give the process back as it was: a run seeds the global generators and sets torch's threads.

    These and the log belong to the whole process, so other threads wait.
    """
    with ONE_AT_A_TIME, quiet_flower():
        states = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
            torch.set_num_threads(states[3])
