"""`thistle deploy local N`: a server and N nodes as processes on this machine, to try it out."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from typing import Annotated

import typer

from thistle.commands.options import Cold, MetricsPort
from thistle.deploy.metrics import page, samples, serving
from thistle.deploy.nodeconfig import as_text, node_config
from thistle.deploy.programs import LOOPBACK, fork_servers, server_superexec, superlink, supernode
from thistle.deploy.service import Service
from thistle.deploy.state import State, root
from thistle.deploy.supervisor import Supervisor
from thistle.engines.flower_programs import free_port, write_connection
from thistle.experiments.errors import UserError
from thistle.running.prepare import make_experiment
from thistle.terminal.screen import log

TRIAL = "digits-clean"
CLIENTS = 50


def local(
    count: Annotated[int, typer.Argument(metavar="N", min=1, max=64, help="How many nodes.")],
    clients: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The experiments' task.clients, divided among the nodes (default: 50; with --data one per node); "
            "0: the nodes share all clients.",
        ),
    ] = None,
    malicious: Annotated[int, typer.Option(min=0, metavar="N", help="Make the last N nodes malicious.")] = 0,
    attack: Annotated[str, typer.Option(help="What malicious nodes do (thistle list attacks).")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="The attack's settings: attack-strength=…")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="folder:PATH or npz:PATH: a node's own data; repeat it once per node."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="A node's name in reports; repeat it once per node. Default: node-1, …"),
    ] = None,
    metrics: MetricsPort = 0,
    cold: Cold = False,
) -> None:
    """Run a federation on this machine until Ctrl-C; plain text, on loopback only."""
    if malicious > count:
        raise UserError(f"--malicious {malicious}: there are {count} nodes")
    if bool(malicious) != bool(attack):
        raise UserError("--malicious and --attack: give both, or neither")
    sources = one_each("--data", data, count, [""] * count)
    sites = one_each("--name", names, count, [f"node-{number + 1}" for number in range(count)])
    if len(set(sites)) < count:
        raise UserError(f"--name: {', '.join(sites)}: each node needs a different name")
    clients = clients if clients is not None else count if data else CLIENTS
    state = State(root() / "local")
    state.create()
    with state.held():
        _empty(state)
        port = free_port()
        write_connection(state.home, f"{LOOPBACK}:{port}")
        link = superlink(state, port, None)
        services = [link, server_superexec(state, port, None, link)]
        forks = fork_servers("warm", state, cold, log)
        for number in range(count):
            attacks = number >= count - malicious
            role, kind, more = ("malicious", attack, settings or []) if attacks else ("honest", "", [])
            config = node_config(share(clients, count, number), sources[number], role, kind, more, sites[number])
            services += _node(f"node-{number + 1}", state, port, as_text(config), link, forks)
        state.tell({"port": port, "services": {service.name: service.health for service in services}, "nodes": count})
        said = serving(metrics, lambda: page(samples(state, services)))
        with contextlib.suppress(KeyboardInterrupt), said, Supervisor([*forks, *services], log) as supervisor:
            supervisor.run(lambda: log(_welcome(count, clients)))


def one_each(option: str, given: list[str] | None, count: int, usual: list[str]) -> list[str]:
    """What was given for each node, or what is usual."""
    if given and len(given) != count:
        raise UserError(f"{option}: given {len(given)} times for {count} nodes; give it once per node, in order")
    return given or usual


def share(clients: int, count: int, number: int) -> str:
    """Node `number`'s part of 0…clients−1; empty if the nodes share all clients."""
    first, last = clients * number // count, clients * (number + 1) // count - 1
    if clients and last < first:
        raise UserError(f"--clients {clients}: too few for {count} nodes")
    return f"{first}-{last}" if clients else ""


def _node(name: str, around: State, port: int, config: str, link: Service, forks: list[Service]) -> list[Service]:
    state = State(around.path / name)
    state.create()
    services = supernode(name, state, f"{LOOPBACK}:{port}", config, forks=forks)
    services[0].after = link
    return services


def _empty(state: State) -> None:
    """What an earlier trial left: everything but its runs and their audit log."""
    for path in state.path.iterdir():
        if path.name in (state.runs.name, ".lock") or path.name.startswith("audit."):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    state.create()


def fitting(clients: int) -> list[str]:
    """The settings that make the trial fit nodes with this many clients in all."""
    usual = make_experiment(TRIAL, [])
    keys = {"rounds": 10}
    if clients not in (0, usual.task.clients):
        keys |= {"task.clients": clients}
        keys |= {"client.per-round": clients} if clients < usual.client.per_round else {}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def _welcome(count: int, clients: int) -> str:
    submit = shlex.join(["thistle", "deploy", "submit", TRIAL, *fitting(clients)])
    return f"{count} nodes are up. In another terminal: {submit}  (Ctrl-C ends this)"
