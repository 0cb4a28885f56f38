"""Whether a process of Flower's lives: its gRPC health service, asked with a deadline.

The HTTP /health of a SuperNode that has given up for ever still says 200; the gRPC one stops answering.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

DEADLINE = 10.0
"""Seconds. A machine under load answers late, and nothing should be ended for that."""


def grpc_serving(address: str) -> bool:
    """Whether the health service at host:port says SERVING within the deadline."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def accepts(address: str) -> bool:
    """Whether somebody takes a connection at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=DEADLINE).close()
    except OSError:
        return False
    return True


def reachable(listen: str) -> str:
    """An address of this machine at which somebody who listens there is found."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "*", "0.0.0.0", "[::]") else listen


def all_answers(told: Mapping[str, Any]) -> dict[str, bool]:
    """Of the processes that a state tells of: Flower's by gRPC, the gateway by taking a connection."""
    services = told.get("services", {})
    return {
        name: grpc_serving(address) if address else accepts(reachable(told["listen"]))
        for name, address in services.items()
    }
