"""What a SuperNode asks a SuperLink for, and what a SuperLink refuses it for.

Flower does not document its Fleet API: the gateway must know its paths to let nothing else through, and the doctor
must know by how much a node's clock may differ, because a SuperLink does not report it.
"""

from __future__ import annotations

PREFIX = "/v1/fleet/"
ROUTES = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What an authenticated node asks for."""
REFUSED = ("register-node", "unregister-node")
"""What else there is: with our deployments, keys are registered by who runs the server."""
CHUNK = 5 * 2**20
"""Bytes: Flower cuts arrays into pieces of this size, each a request of its own."""
AHEAD, BEHIND = 5.0, 300.0
"""Seconds by which a node's clock may differ: beyond that the SuperLink refuses it and does not say why."""
