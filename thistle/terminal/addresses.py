"""Addresses that people type."""

from __future__ import annotations

import re

from thistle.experiments.errors import UserError

HOST = re.compile(r"[\w.*-]+|\[[\da-fA-F:.]+\]")
"""A name, an address, `*`; what stands in a configuration of nginx must not be able to end its line."""


def parse_address(option: str, text: str, such_as: str = "such as fl.example.org:8443") -> tuple[str, int]:
    """The host and the port of HOST:PORT, an IPv6 address in brackets; `option` is where it was typed."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    if not is_port or not HOST.fullmatch(host):
        raise UserError(f"{option} {text}: should be HOST:PORT, {such_as}")
    return host.strip("[]"), int(port)
