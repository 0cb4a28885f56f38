"""What a SuperNode says in its log when it has begun its work, and what its last words mean.

It has no other way to tell: its exit code is the same for all of them, and its health service answers before the
SuperLink has admitted it.
"""

from __future__ import annotations

from thistle.protocol.text import last_line

ADMITTED = "SuperNode ID"
"""Said once the SuperLink has taken it."""
REASONS = (
    (
        "code: 2004",
        "the server refuses this node: its key is not registered (thistle deploy add-node), or was revoked, "
        "or its last session is not yet over, which takes up to 60 s",
    ),
    ("code: 2001", "the server wants nodes with a key: give --certs with this node's folder"),
    ("CERTIFICATE_VERIFY_FAILED", "the server's certificate is not of this CA, or not for this name: see --certs"),
    ("SSL/TLS handshake error", "the server's certificate is not of this CA, or not for this name: see --certs"),
    (
        "terminated gracefully",
        "it left without a reason: its clock is more than 5 s ahead of the server's, or its key was revoked",
    ),
    ("failed to start", "its port on this machine is taken"),
)


def explain(log: str) -> str:
    """Plain words, where these are known; else the log's own last line."""
    return next((plain for sign, plain in REASONS if sign in log), last_line(log))
