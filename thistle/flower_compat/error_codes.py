"""Flower's numbers for why a message has no reply, which a public `Error` wants and no public module has."""

from __future__ import annotations

from flwr.common.constant import ErrorCode

__all__ = ["ErrorCode"]
